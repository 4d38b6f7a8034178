"""An answer by rounds in a session of its target: the target's own, whatever draft, target and client do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from backends.errors import ConnectFailed, UnknownObject, UpstreamCut
from backends.protocol import Call
from policies.speculation.exact import ExactSpeculation
from tests.support.calls import make_call, read_all, read_and_leave
from tests.support.policy.drafting import AlwaysOn, FakeDraft, FakeTarget, speculating

ANSWER = [random.Random(1).randrange(100) for _ in range(60)]


def right(known: list[int], most: int) -> list[int]:
    """What will come."""
    return ANSWER[len(known) :][:most]


def wrong(known: list[int], most: int) -> list[int]:
    """Never what will come."""
    return [token + 100 for token in right(known, most)]


def now_and_then(known: list[int], most: int) -> list[int]:
    """What will come, but for each fifth token."""
    return [token + 100 * (place % 5 == 0) for place, token in enumerate(right(known, most), len(known))]


def nothing(known: list[int], most: int) -> list[int]:
    """Not a word."""
    return []


def too_much(known: list[int], most: int) -> list[int]:
    """Far more than was asked for."""
    return [1] * 5000


async def answered(stage: ExactSpeculation) -> tuple[bytes, Call]:
    """A whole stream, and its call."""
    call = make_call(stream=True)
    return await read_all(await stage.send(call)), call


def by_rounds(target: FakeTarget, draft: FakeDraft) -> ExactSpeculation:
    """The stage around both, without pushing."""
    return speculating(target, draft, verify=["session"])


def always_by_rounds(target: FakeTarget, draft: FakeDraft) -> ExactSpeculation:
    """The same, whatever a busy machine measures."""
    stage = by_rounds(target, draft)
    stage.controllers["target"] = AlwaysOn()
    return stage


async def test_a_good_draft_saves_steps_and_nobody_sees_it() -> None:
    """The stream is the target's own without marks; what the rounds have done is told in the facts."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    stage = always_by_rounds(target, draft)

    stream, call = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert target.num_steps <= 1 + 10
    told = call.facts.speculation
    assert told is not None
    assert (told.draft, told.ended, told.rounds) == ("draft", "", target.num_steps - 1)
    assert 50 <= told.accepted <= told.drafted <= 59
    assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_draft_goes_on_while_it_is_checked() -> None:
    """One that is right is asked for the tokens of four rounds at once, and one that is wrong after each miss."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    stage = always_by_rounds(target, draft)
    other_target, missing = FakeTarget(ANSWER), FakeDraft(now_and_then)
    other_stage = always_by_rounds(other_target, missing)

    _, call = await answered(stage)
    _, other = await answered(other_stage)
    await stage.aclose()
    await other_stage.aclose()

    assert draft.num_asked <= 3 < len(target.verified)
    told, told_other = call.facts.speculation, other.facts.speculation
    assert told is not None
    assert told_other is not None
    assert told.drafted > told.ahead > told.drafted / 3 > 0
    assert told_other.ahead < told_other.drafted / 3
    assert missing.num_asked >= 60 // 5 - 1
    assert draft.num_open == missing.num_open == 0


@pytest.mark.parametrize(("guess", "least", "most"), [(right, 0.9, 1.0), (wrong, 0.0, 0.1), (now_and_then, 0.6, 0.9)])
async def test_answers_alone_are_scored_behind_their_callers(
    guess: Callable[[list[int], int], list[int]], least: float, most: float
) -> None:
    """The share of a draft's tokens that would have come true is known before it was waited for once."""
    target, draft = FakeTarget(ANSWER, step_s=0.001), FakeDraft(guess, step_s=0.0)
    stage = by_rounds(target, draft)
    controller = stage.controllers["target"]
    controller.fail()

    stream, _ = await answered(stage)
    await stage.shadow.wait()
    await stage.aclose()

    assert stream == target.text
    assert [alone for _, alone in target.verified] == [True]
    assert controller.acceptance.is_known
    assert least <= controller.acceptance.share <= most
    assert draft.num_open == 0


@pytest.mark.parametrize("guess", [wrong, now_and_then, nothing, too_much])
async def test_whatever_a_draft_guesses_the_answer_is_the_targets(guess: Callable[[list[int], int], list[int]]) -> None:
    """And it takes no more steps than alone."""
    target, draft = FakeTarget(ANSWER), FakeDraft(guess)
    stage = always_by_rounds(target, draft)

    stream, _ = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert target.num_steps <= len(ANSWER)
    assert max(len(round_.tokens) for round_, _ in target.verified) <= 8
    assert (target.num_open, draft.num_open) == (0, 0)


@pytest.mark.timed
async def test_rounds_that_bring_nothing_are_left_within_one_answer() -> None:
    """The target then says the rest alone, and the next answers find that out sooner."""
    target, draft = FakeTarget(ANSWER), FakeDraft(wrong)
    stage = by_rounds(target, draft)

    await answered(stage)
    num_rounds = len(target.verified)
    await answered(stage)
    await stage.aclose()

    assert 2 <= num_rounds <= 8
    assert [alone for _, alone in target.verified[:num_rounds]] == [False] * (num_rounds - 1) + [True]
    assert len(target.verified) <= 2 * num_rounds
    assert target.verified[-1][1]


def is_away(draft: FakeDraft) -> None:
    """Nobody listens there."""
    draft.error = ConnectFailed("nobody is there")


def breaks(draft: FakeDraft) -> None:
    """Its code raises what it should not."""
    draft.error = RuntimeError("a bug")


def dies(draft: FakeDraft) -> None:
    """In the middle of a guess."""
    draft.dies_after = 1


def talks_garbage(draft: FakeDraft) -> None:
    """No JSON."""
    draft.wrap = lambda event: b"data: {\n\n"


def has_no_ids(draft: FakeDraft) -> None:
    """As a server that does not know the field."""
    draft.wrap = lambda event: event.replace(b"token_ids", b"other")


@pytest.mark.parametrize("harm", [is_away, breaks, dies, talks_garbage, has_no_ids])
async def test_a_draft_that_fails_never_shows(harm: Callable[[FakeDraft], None]) -> None:
    """The target says the rest alone, and the next answers are alone for a while."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    harm(draft)
    stage = by_rounds(target, draft)

    async with asyncio.timeout(10):
        stream, call = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert draft.num_asked == 1
    assert call.facts.speculation is not None
    assert call.facts.speculation.ended == "failed"
    assert not stage.controllers["target"].is_on
    assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_session_that_is_lost_is_opened_once_more_behind_what_is_known() -> None:
    """The client sees one whole answer; the second time it is a cut, never text of the draft."""
    target, draft = FakeTarget(ANSWER), FakeDraft(now_and_then)
    target.loses_session_at = 20
    stage = always_by_rounds(target, draft)

    stream, call = await answered(stage)
    again = target.calls[-1]
    await stage.aclose()

    assert stream == target.text
    assert len(target.calls) == 2
    assert again.resume is not None
    assert list(again.resume.begun.tokens) == ANSWER[: len(again.resume.begun.tokens)]
    assert len(again.resume.begun.tokens) >= 20
    assert call.facts.speculation is not None
    assert call.facts.speculation.ended == "lost"

    target.verify_error = UnknownObject("always lost")
    stage = always_by_rounds(target, draft)
    reply = await stage.send(make_call(stream=True))
    with pytest.raises(UpstreamCut):
        await read_all(reply)
    await stage.aclose()


async def test_a_target_without_sessions_is_passed_on_as_it_is_and_left_alone() -> None:
    """Nobody is asked for a guess; the next answers are not looked at."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    target.is_marked = target.knows_rounds = False
    stage = by_rounds(target, draft)

    first, call = await answered(stage)
    second, later = await answered(stage)
    await stage.aclose()

    assert first == second == target.text
    assert call.facts.speculation is not None
    assert (call.facts.speculation.ended, later.facts.speculation) == ("unmarked", None)
    assert [each.by_rounds for each in target.calls] == [True, False]
    assert draft.num_asked == 0


@pytest.mark.parametrize("num_pieces", [0, 1, 4])
async def test_a_client_that_leaves_ends_target_and_draft(num_pieces: int) -> None:
    """At any time."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    stage = by_rounds(target, draft)
    reply = await stage.send(make_call(stream=True))

    await read_and_leave(reply, num_pieces)

    assert (target.num_open, draft.num_open) == (0, 0)
    await stage.aclose()
