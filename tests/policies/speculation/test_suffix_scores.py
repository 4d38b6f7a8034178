"""An answer by scored prompts, at a target that tells the likeliest token at each place: its own text and end."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from backends.clock import SystemClock
from backends.drafts.answer_writer import TokenizerWords
from backends.engine.text.tokenizer import Tokenizer
from backends.errors import ConnectFailed
from backends.protocol import Call
from policies.speculation.control.controller import Controller
from policies.speculation.exact import ExactSpeculation
from policies.speculation.settings import ExactPolicy, VerifyMethod
from tests.support.calls import event_values, make_call, read_all, read_and_leave
from tests.support.policy.drafting import AlwaysOn, FakeDraft
from tests.support.policy.probed_target import PROMPT, ProbedTarget, guessing

FOLDER = Path(str(resources.files("backends.engine.demo_models"))) / "target"
TOKENIZER = Tokenizer(FOLDER)
TEXT = "The river runs past the old mill — naïve 🙂 and the tall green trees by the road; then it ends."
ANSWER = TOKENIZER.encode(TEXT)


def scoring(
    target: ProbedTarget, draft: FakeDraft, verify: tuple[VerifyMethod, ...] = ("suffix_logprobs",)
) -> ExactSpeculation:
    """The stage around both, which are known to have the same tokens."""
    policy = ExactPolicy(mode="exact", draft="draft", verify=verify, tokenizer=str(FOLDER))
    stage = ExactSpeculation(target, policy, draft, {"target": target}, SystemClock(), TokenizerWords(TOKENIZER))
    assert stage.tokens is not None
    stage.tokens.known.add("target")
    stage.controllers["target"] = AlwaysOn()
    return stage


async def answered(stage: ExactSpeculation, **extra: Any) -> tuple[str, str | None, Call]:
    """Text and reason of the end of a greedy answer, and its call."""
    call = make_call(stream=True, extra={"max_tokens": 200, "temperature": 0, **extra})
    stream = await read_all(await stage.send(call))
    assert b"token_ids" not in stream
    values = event_values(stream)
    assert values[0]["choices"][0]["delta"].get("role") == "assistant"
    choices = [choice for value in values for choice in value["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, next((each["finish_reason"] for each in choices if each["finish_reason"]), None), call


@pytest.mark.parametrize("tells_streams", [True, False])
@pytest.mark.parametrize(("share", "says_end"), [(0, False), (0, True), (1, False), (3, True)])
@pytest.mark.parametrize(
    ("extra", "text", "reason"),
    [
        ({}, TEXT, "stop"),
        ({"stop": ["green", "trees by"]}, TEXT.partition("green")[0], "stop"),
        ({"max_tokens": 9}, TOKENIZER.decode(ANSWER[:9]), "length"),
    ],
)
async def test_text_and_end_are_the_targets(
    tells_streams: bool, share: int, says_end: bool, extra: dict[str, Any], text: str, reason: str
) -> None:
    """Whether the target tells the tokens of its streams, or of whole answers only; whatever the draft says."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, share, says_end=says_end)
    target.tells_streams = tells_streams
    stage = scoring(target, draft)

    # The first one finds out that streams do not tell, and is the target's own.
    await answered(stage)
    told = await answered(stage, **extra)

    assert told[:2] == (text, reason)
    assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_chat_whose_stream_tells_no_tokens_begins_with_a_token_asked_whole() -> None:
    """The client that found it out gets its answer all the same; from then on no stream is refused."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    target.tells_streams = False
    stage = scoring(target, draft)

    _, _, first = await answered(stage)
    num_before = len(target.calls)
    _, _, second = await answered(stage)
    usage, told = second.facts.usage, second.facts.speculation

    assert first.facts.speculation is None
    assert told is not None
    assert (told.ended, told.accepted > 10) == ("", True)
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), len(ANSWER) + 1)
    assert not any(call.stream for call in target.calls[num_before:])
    assert target.num_probes <= len(ANSWER) // 9 + 3


async def test_a_stream_that_was_refused_once_is_not_asked_again_where_rounds_do_not_pay() -> None:
    """Its draft could be scored by what the stream tells; not by a refusal for every call."""
    target = ProbedTarget(TOKENIZER, ANSWER)
    target.tells_streams = False
    stage = scoring(target, guessing(ANSWER, 0))
    stage.controllers["target"] = Controller()

    nums = []
    for _ in range(3):
        await answered(stage)
        nums.append(len(target.calls))

    assert nums == [2, 3, 4]


async def test_a_refusal_of_the_clients_own_is_passed_on() -> None:
    """Nothing is learned of a body that the target does not like anyway."""
    target = ProbedTarget(TOKENIZER, ANSWER)
    target.refuses = True
    stage = scoring(target, guessing(ANSWER, 0))

    replies = [await stage.send(make_call(stream=True, extra={"max_tokens": 9, "temperature": 0})) for _ in range(2)]

    assert [reply.status for reply in replies] == [400, 400]
    target.refuses = False
    _, _, call = await answered(stage)
    assert call.facts.speculation is not None


@pytest.mark.parametrize("text", ["other", "hidden"])
async def test_a_first_token_that_is_another_text_leaves_the_answer_to_the_target(text: str) -> None:
    """Another tokenizer, or a part of the answer that the target does not show."""
    target = ProbedTarget(TOKENIZER, ANSWER)
    target.tells_streams = False
    stage = scoring(target, guessing(ANSWER, 0))
    await answered(stage)
    target.other_text = "!" if text == "other" else ""
    target.hides_until = 6 if text == "hidden" else 0

    found, _, call = await answered(stage)

    assert found.count("!") == (len(ANSWER) if text == "other" else 0)
    assert target.num_probes == 0
    assert call.facts.speculation is None


async def test_answers_that_are_drawn_are_probed_where_that_is_allowed_and_else_left_alone() -> None:
    """The likeliest token is no draw; nor is it what a biased answer says."""
    for extra in ({"temperature": 0.7}, {"temperature": 0, "logit_bias": {"5": 4}}, {"temperature": None}):
        alone, probed = ProbedTarget(TOKENIZER, ANSWER), ProbedTarget(TOKENIZER, ANSWER)

        told = await answered(scoring(alone, guessing(ANSWER, 0)), **extra)
        other = await answered(scoring(probed, guessing(ANSWER, 0), ("suffix_logprobs", "probes")), **extra)

        assert (told[0], other[0]) == (TEXT, TEXT)
        assert (alone.num_probes, len(alone.calls)) == (0, 1)
        assert probed.num_probes > 0
        assert all(call.path != "/generate" for call in probed.calls)


def lacks_a_place(body: dict[str, Any]) -> None:
    """Fewer places than were asked about."""
    body["meta_info"]["input_top_logprobs"].pop()


def tells_nothing(body: dict[str, Any]) -> None:
    """As a server that does not know the field."""
    del body["meta_info"]


def tells_no_token(body: dict[str, Any]) -> None:
    """A token that no vocabulary has."""
    body["meta_info"]["output_token_logprobs"] = [[-0.1, -4, None]]


def tells_no_list(body: dict[str, Any]) -> None:
    """A place of which nothing is told."""
    body["meta_info"]["input_top_logprobs"][-1] = None


def was_aborted(body: dict[str, Any]) -> None:
    """The server has thrown the call out."""
    body["meta_info"]["finish_reason"] = {"type": "abort"}


def tells_texts(body: dict[str, Any]) -> None:
    """Where numbers should be."""
    body["meta_info"]["output_token_logprobs"] = [["a", "b", "c"]]


@pytest.mark.parametrize(
    "wrong", [lacks_a_place, tells_nothing, tells_no_token, tells_no_list, was_aborted, tells_texts]
)
async def test_malformed_scores_send_the_call_on_alone_and_three_end_the_method(wrong: Callable[[Any], None]) -> None:
    """Counted for each call; the fourth call is not even asked for token ids."""
    target = ProbedTarget(TOKENIZER, ANSWER)
    target.wrong = wrong
    stage = scoring(target, guessing(ANSWER, 0))

    told = [await answered(stage) for _ in range(4)]

    assert {each[:2] for each in told} == {(TEXT, "stop")}
    ended = [call.facts.speculation.ended if call.facts.speculation else None for _, _, call in told]
    assert ended == ["malformed"] * 3 + [None]
    assert (target.num_probes, target.num_open) == (3, 0)


@pytest.mark.parametrize(("status", "ended"), [(404, "malformed"), (500, "failed")])
async def test_a_target_that_fails_and_a_draft_that_is_away_are_not_seen(status: int, ended: str) -> None:
    """The target says the rest by itself; one that does not know the way is soon not asked so any more."""
    for harm in ("target", "draft"):
        target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
        if harm == "target":
            target.status = status
        else:
            draft.error = ConnectFailed("nobody is there")

        text, reason, call = await answered(scoring(target, draft))

        assert (text, reason) == (TEXT, "stop")
        assert call.facts.speculation is not None
        assert call.facts.speculation.ended == (ended if harm == "target" else "failed")
        assert (target.num_open, draft.num_open) == (0, 0)


@pytest.mark.parametrize("num_pieces", [0, 1, 3])
async def test_a_client_that_leaves_ends_target_and_draft(num_pieces: int) -> None:
    """At any time, also of an answer whose first token was asked whole."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    target.tells_streams = False
    stage = scoring(target, draft)
    await answered(stage)
    call = make_call(stream=True, extra={"max_tokens": 200, "temperature": 0})
    reply = await stage.send(call)

    await read_and_leave(reply, num_pieces)

    assert (target.num_open, draft.num_open) == (0, 0)
    assert call.facts.usage is not None
    assert call.facts.usage.completion_tokens >= max(1, num_pieces)
