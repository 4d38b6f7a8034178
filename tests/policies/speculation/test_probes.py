"""An answer by probes, at a target that knows no drafts: its own text and end, whatever draft and target do."""

from __future__ import annotations

import asyncio
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
from policies.speculation.exact import ExactSpeculation
from policies.speculation.settings import ExactPolicy
from tests.support.calls import event_values, make_call, read_all, read_and_leave
from tests.support.policy.drafting import AlwaysOn, FakeDraft
from tests.support.policy.probed_target import PROMPT, ProbedTarget, guessing

FOLDER = Path(str(resources.files("backends.engine.demo_models"))) / "target"
TOKENIZER = Tokenizer(FOLDER)
TEXT = "The river runs past the old mill — naïve 🙂 and the tall green trees by the road; then it ends."
ANSWER = TOKENIZER.encode(TEXT)


def probing(target: ProbedTarget, draft: FakeDraft, *, is_known: bool = True) -> ExactSpeculation:
    """The stage around both."""
    policy = ExactPolicy(mode="exact", draft="draft", verify=("probes",), tokenizer=str(FOLDER))
    stage = ExactSpeculation(target, policy, draft, {"target": target}, SystemClock(), TokenizerWords(TOKENIZER))
    if is_known:
        assert stage.tokens is not None
        stage.tokens.known.add("target")
        stage.controllers["target"] = AlwaysOn()
    return stage


async def answered(stage: Any, **extra: Any) -> tuple[str, str | None, Call]:
    """Text and reason of the end of an answer, and its call."""
    call = make_call(stream=True, extra={"max_tokens": 200, **extra})
    stream = await read_all(await stage.send(call))
    assert b"token_ids" not in stream
    choices = [choice for value in event_values(stream) for choice in value["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, next((each["finish_reason"] for each in choices if each["finish_reason"]), None), call


@pytest.mark.parametrize("share", [0, 1, 3])
@pytest.mark.parametrize(
    ("extra", "text", "reason"),
    [
        ({}, TEXT, "stop"),
        ({"stop": ["green", "trees by"]}, TEXT.partition("green")[0], "stop"),
        ({"stop": ["ends.x"]}, TEXT, "stop"),
        ({"max_tokens": 9}, TOKENIZER.decode(ANSWER[:9]), "length"),
        ({"max_tokens": 9, "stop": TOKENIZER.decode(ANSWER[7:9])}, TOKENIZER.decode(ANSWER[:7]), "stop"),
    ],
)
async def test_text_and_end_are_the_targets(share: int, extra: dict[str, Any], text: str, reason: str) -> None:
    """Characters of several tokens, stop strings across tokens, lengths; with right guesses and wrong ones."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, share)

    told = await answered(probing(target, draft), **extra)

    assert told[:2] == (text, reason)
    assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_good_draft_makes_rounds_few_and_the_facts_tell() -> None:
    """Nine tokens a round; prompts of probes are counted beside the answer's own usage."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)

    _, _, call = await answered(probing(target, draft))
    told, usage = call.facts.speculation, call.facts.usage

    assert target.num_probes <= len(ANSWER) // 9 + 2
    assert told is not None
    assert (told.ended, told.rounds) == ("", target.num_probes)
    assert told.probe_tokens > len(ANSWER)
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), len(ANSWER) + 1)


def lacks_one(body: dict[str, Any]) -> None:
    """A choice less than prompts."""
    body["choices"].pop()


def tells_no_tokens(body: dict[str, Any]) -> None:
    """As a server that does not know the field."""
    del body["choices"][0]["token_ids"]


def tells_two(body: dict[str, Any]) -> None:
    """Where one was asked for."""
    body["choices"][0]["token_ids"] = [5, 6]


def tells_texts(body: dict[str, Any]) -> None:
    """Where tokens were asked for."""
    body["choices"][0]["token_ids"] = ["a"]


def tells_none_of_its_own(body: dict[str, Any]) -> None:
    """A token that no vocabulary has."""
    body["choices"][0]["token_ids"] = [-4]


def hides_ends(body: dict[str, Any]) -> None:
    """As a server that keeps the token to itself which ends an answer: the one before it would be taken for that."""
    body["choices"][0].update(token_ids=[], finish_reason="stop")


@pytest.mark.parametrize(
    "wrong", [hides_ends, lacks_one, tells_no_tokens, tells_two, tells_texts, tells_none_of_its_own]
)
async def test_malformed_verdicts_send_the_call_on_alone_and_three_end_the_method(wrong: Callable[[Any], None]) -> None:
    """Counted for each call; the fourth call is not even asked for token ids."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    target.wrong = wrong
    stage = probing(target, draft)

    told = [await answered(stage) for _ in range(4)]

    assert {each[:2] for each in told} == {(TEXT, "stop")}
    ended = [call.facts.speculation.ended if call.facts.speculation else None for _, _, call in told]
    assert ended == ["malformed"] * 3 + [None]
    assert (target.num_probes, target.num_open) == (3, 0)


async def test_a_target_that_fails_probes_and_a_draft_that_is_away_are_not_seen() -> None:
    """The target says the rest by itself."""
    for harm in ("target", "draft"):
        target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
        if harm == "target":
            target.status = 500
        else:
            draft.error = ConnectFailed("nobody is there")

        text, reason, call = await answered(probing(target, draft))

        assert (text, reason) == (TEXT, "stop")
        assert call.facts.speculation is not None
        assert call.facts.speculation.ended == "failed"
        assert (target.num_open, draft.num_open) == (0, 0)


async def test_a_target_whose_text_is_another_goes_on_with_its_own_stream() -> None:
    """Its tokens cannot be the tokenizer's, whatever was found before."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    target.other_text = "!"

    text, _, call = await answered(probing(target, draft))

    assert text == "".join(event_text + "!" for event_text in _pieces())
    assert call.facts.speculation is not None
    assert call.facts.speculation.ended == "tokenizer"
    assert target.num_probes == 0


async def test_a_target_that_hides_what_its_model_reasons_goes_on_with_its_own_stream() -> None:
    """What is not shown at first is never shown."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    target.hides_until = 6

    text, _, _ = await answered(probing(target, draft))

    assert text == "".join(_pieces()[6:])
    assert target.num_probes == 0


def _pieces() -> list[str]:
    from backends.engine.text.detokenizer import Detokenizer

    writer = Detokenizer(TOKENIZER, continues=True)
    return [writer.push([token]) for token in ANSWER]


@pytest.mark.parametrize(
    "extra",
    [
        {"seed": 1},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"logprobs": True},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"response_format": {"type": "json_object"}},
        {"n": 2},
        {"max_tokens": None},
        {"guided_regex": "a*"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
async def test_calls_that_could_become_other_answers_are_sent_as_they_are(extra: dict[str, Any]) -> None:
    """Seeds, tools, grammars, penalties, log-probabilities, images, answers of no known length."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    call = make_call(stream=True, extra={"max_tokens": 200, **extra})

    await read_all(await probing(target, draft).send(call))

    assert target.calls == [call]
    assert draft.num_asked == 0


async def test_nothing_is_probed_before_the_tokenizers_are_known_to_be_one() -> None:
    """The first call is alone and has both asked; a draft with other tokens keeps the target alone."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    stage = probing(target, draft, is_known=False)

    text, _, call = await answered(stage)
    async with asyncio.timeout(5):
        while len(target.calls) < 2:
            await asyncio.sleep(0.01)
    assert stage.tokens is not None
    await stage.tokens.wait()
    await answered(stage)

    assert text == TEXT
    assert call.facts.speculation is None
    # The draft of this test answers with streams only, so nobody knows its tokens.
    assert stage.tokens.known == set()
    assert target.num_probes == 0


@pytest.mark.parametrize("num_pieces", [0, 1, 3])
async def test_a_client_that_leaves_ends_target_and_draft(num_pieces: int) -> None:
    """At any time."""
    target, draft = ProbedTarget(TOKENIZER, ANSWER), guessing(ANSWER, 0)
    reply = await probing(target, draft).send(make_call(stream=True, extra={"max_tokens": 200}))

    await read_and_leave(reply, num_pieces)

    assert (target.num_open, draft.num_open) == (0, 0)
