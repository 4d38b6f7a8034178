"""An answer with a draft beside it: the target's own, whatever draft, target and client do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from backends.drafts.push import DraftMark, DraftsBy
from backends.errors import ConnectFailed, UnknownObject, UpstreamCut, UpstreamGarbage
from backends.protocol import Call
from policies.speculation.exact import ExactSpeculation
from tests.support.calls import make_call, read_all, read_and_leave
from tests.support.policy.drafting import FakeDraft, FakeTarget, speculating

ANSWER = [random.Random(1).randrange(100) for _ in range(60)]


def right(known: list[int], most: int) -> list[int]:
    """What will come."""
    return ANSWER[len(known) :][:most]


def wrong(known: list[int], most: int) -> list[int]:
    """Never what will come."""
    return [token + 100 for token in right(known, most)]


def now_and_then(known: list[int], most: int) -> list[int]:
    """What will come, but for each fifth token."""
    first = len(known)
    return [token + 100 * (place % 5 == 0) for place, token in enumerate(right(known, most), first)]


def nothing(known: list[int], most: int) -> list[int]:
    """Not a word."""
    return []


def too_much(known: list[int], most: int) -> list[int]:
    """Far more than was asked for."""
    return [1] * 5000


async def answered(stage: ExactSpeculation, **fields: Any) -> tuple[bytes, Call]:
    """A whole stream, and its call."""
    call = make_call(stream=True, **fields)
    return await read_all(await stage.send(call)), call


async def test_a_good_draft_saves_steps_and_nobody_sees_it() -> None:
    """The stream is the target's own without marks; what the draft has done is told in the facts."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    stage = speculating(target, draft)

    stream, call = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert target.num_steps < 20
    assert call.facts.speculation is not None
    assert (call.facts.speculation.draft, call.facts.speculation.ended) == ("draft", "")
    assert 40 < call.facts.speculation.accepted <= call.facts.speculation.drafted <= 60
    assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_wrong_guess_is_broken_off_before_the_draft_has_said_more_of_it() -> None:
    """One that says a wrong token and then nothing for an hour is asked anew behind the target's own."""
    target, draft = FakeTarget(ANSWER), FakeDraft(wrong)
    draft.stalls_after = 1
    stage = speculating(target, draft)

    stream, _ = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert draft.num_asked >= 3
    assert (target.num_open, draft.num_open) == (0, 0)


@pytest.mark.parametrize("guess", [wrong, now_and_then, nothing, too_much])
async def test_whatever_a_draft_guesses_the_answer_is_the_targets(guess: Callable[[list[int], int], list[int]]) -> None:
    """And it takes no more steps than alone."""
    target, draft = FakeTarget(ANSWER), FakeDraft(guess)
    stage = speculating(target, draft)

    stream, _ = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert target.num_steps <= len(ANSWER)
    assert draft.num_said < 3000
    assert max((len(push.tokens) for push in target.pushes), default=0) <= 64
    assert (target.num_open, draft.num_open) == (0, 0)


def refuses(draft: FakeDraft) -> None:
    """As a server without such a model does."""
    draft.status = 404


def is_away(draft: FakeDraft) -> None:
    """Nobody listens there."""
    draft.error = ConnectFailed("nobody is there")


def breaks(draft: FakeDraft) -> None:
    """Its code raises what it should not."""
    draft.error = RuntimeError("a bug")


def dies(draft: FakeDraft) -> None:
    """In the middle of a guess."""
    draft.dies_after = 3


def stalls(draft: FakeDraft) -> None:
    """It says no more, and does not end."""
    draft.stalls_after = 3


def talks_garbage(draft: FakeDraft) -> None:
    """No JSON."""
    draft.wrap = lambda event: b"data: {\n\n"


def has_no_ids(draft: FakeDraft) -> None:
    """As a server that does not know the field."""
    draft.wrap = lambda event: event.replace(b"token_ids", b"other")


def has_odd_ids(draft: FakeDraft) -> None:
    """Such as no vocabulary has."""
    draft.wrap = lambda event: event.replace(b"[", b"[-", 2).replace(b"[-{", b"[{")


def tells_an_error(draft: FakeDraft) -> None:
    """In the middle of a 200."""
    draft.wrap = lambda event: b'data: {"error":{"message":"no"}}\n\n'


@pytest.mark.parametrize(
    "harm", [refuses, is_away, breaks, dies, stalls, talks_garbage, has_no_ids, has_odd_ids, tells_an_error]
)
async def test_a_draft_that_fails_never_shows(harm: Callable[[FakeDraft], None]) -> None:
    """The stream goes on alone at the target's own pace, and the next answers are alone for a while."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    harm(draft)
    stage = speculating(target, draft)

    async with asyncio.timeout(10):
        stream, call = await answered(stage)
    asked = draft.num_asked
    await stage.aclose()

    assert stream == target.text
    assert asked == 1
    assert call.facts.speculation is not None
    assert call.facts.speculation.ended == ("" if harm is stalls else "failed")
    assert harm is stalls or not stage.controllers["target"].is_on
    assert (target.num_open, draft.num_open) == (0, 0)


@pytest.mark.parametrize(
    ("error", "ended"),
    [(UnknownObject("no such answer"), "gone"), (UpstreamGarbage("500"), "failed"), (UpstreamCut("cut"), "failed")],
)
async def test_posts_that_do_not_come_through_end_the_draft_only(error: Exception, ended: str) -> None:
    """They come out at another process, say, or the line is dead."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    target.push_error = error
    stage = speculating(target, draft)

    stream, call = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert call.facts.speculation is not None
    assert call.facts.speculation.ended == ended
    assert not stage.controllers["target"].is_on
    assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_target_that_takes_no_drafts_is_passed_on_as_it_is() -> None:
    """Nobody is asked for a guess."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    target.is_marked = False
    stage = speculating(target, draft)

    stream, call = await answered(stage)

    assert stream == target.text
    assert call.facts.speculation is not None
    assert call.facts.speculation.ended == "unmarked"
    assert draft.num_asked == 0


async def test_a_target_that_tells_garbage_or_keeps_nothing_goes_on_alone() -> None:
    """A mark that cannot be read, and one without room."""
    for harm in ("garbage", "room"):
        target, draft = FakeTarget(ANSWER), FakeDraft(right)
        if harm == "garbage":
            target.garbage_at = 10
        else:
            target.first_mark = DraftMark(id="d-1", room=0, prompt=(7, 7))
        stage = speculating(target, draft)

        stream, call = await answered(stage)
        await stage.aclose()

        assert stream == target.text
        assert call.facts.speculation is not None
        assert call.facts.speculation.ended == ("garbage" if harm == "garbage" else "")
        assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_target_that_dies_ends_as_without_a_draft_and_never_with_drafted_text() -> None:
    """What the client has by then is what the target has said."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    target.cut_after = 20
    stage = speculating(target, draft)
    reply = await stage.send(make_call(stream=True))
    told = b""

    async def read() -> None:
        nonlocal told
        assert reply.stream is not None
        while piece := await reply.stream.read():
            told += piece

    with pytest.raises(UpstreamCut):
        await read()
    await reply.aclose()
    await stage.aclose()

    assert told
    assert target.text.startswith(told)
    assert (target.num_open, draft.num_open) == (0, 0)


@pytest.mark.parametrize("num_pieces", [0, 1, 4])
async def test_a_client_that_leaves_ends_target_and_draft(num_pieces: int) -> None:
    """At any time."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    stage = speculating(target, draft)
    reply = await stage.send(make_call(stream=True))

    await read_and_leave(reply, num_pieces)

    assert (target.num_open, draft.num_open) == (0, 0)
    await stage.aclose()


async def test_calls_that_cannot_be_helped_are_sent_as_they_are() -> None:
    """Whole answers, several answers, and those of callers who draft themselves."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    stage = speculating(target, draft)
    calls = [
        make_call(),
        make_call(stream=True, extra={"n": 2}),
        make_call(stream=True, extra={"best_of": 2}),
        make_call(stream=True, drafts=DraftsBy.CALLER),
    ]

    for call in calls:
        await read_all(await stage.send(call))

    assert [call.drafts for call in target.calls] == ["", "", "", "caller"]
    assert target.calls == calls
    assert draft.num_asked == 0


async def test_many_answers_at_once_share_one_draft() -> None:
    """Each gets its own."""
    stages = [speculating(FakeTarget(ANSWER), FakeDraft(now_and_then)) for _ in range(20)]

    found = await asyncio.gather(*map(answered, stages))

    assert {stream for stream, _ in found} == {FakeTarget(ANSWER).text}
    for stage in stages:
        await stage.aclose()


async def test_k_bounds_how_far_the_draft_goes_ahead() -> None:
    """A post has no more tokens."""
    target, draft = FakeTarget(ANSWER), FakeDraft(right)
    stage = speculating(target, draft, k=3)

    stream, _ = await answered(stage)
    await stage.aclose()

    assert stream == target.text
    assert {len(push.tokens) for push in target.pushes} <= {1, 2, 3}
    assert target.num_steps < 40
