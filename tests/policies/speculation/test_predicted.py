"""Texts that answers will probably repeat: where they are found, whom they are told to, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from backends.clock import SystemClock
from backends.drafts.prediction import Prediction, TakenPredictions
from backends.http.openai import KIND as OPENAI
from backends.http.openai_settings import OpenAIConfig
from backends.operations import Operation
from backends.protocol import Backend, Call
from policies.speculation.drafter import Drafter
from policies.speculation.predicted import Predicted
from policies.speculation.predicted_text import found_text, own_prediction
from policies.speculation.settings import PredictedPolicy
from tests.support.calls import make_call, read_all
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

FILE = "\n".join(f'    line {number}: "ä" \\ end' for number in range(12))
LAST = "The old answer, long enough to be worked on; and this is what it says. " * 2
TOOLS = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}]


def said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


TURNS = [said("user", "write it"), said("assistant", LAST), said("user", "shorter, please")]
FENCED = [*TURNS[:2], said("user", f"fix this:\n```python\nx = 1\n```\nand\n~~~\n{FILE}\n~~~\nthanks")]
READ = [said("user", "fix a.py"), said("assistant", None, tool_calls=[]), said("tool", FILE, tool_call_id="c")]


@pytest.mark.parametrize(
    ("messages", "extra", "expected"),
    [
        (TURNS, {}, ("turn", LAST)),
        (FENCED, {}, ("file", FILE + "\n")),
        (READ, {}, ("file", FILE)),
        (READ, {"tools": TOOLS}, ("file", json.dumps(FILE, ensure_ascii=False)[1:-1])),
        (READ, {"tools": TOOLS, "tool_choice": "none"}, ("file", FILE)),
        ([*READ[:2], said("tool", [{"type": "text", "text": FILE}])], {}, ("file", FILE)),
        ([*TURNS[:2], said("tool", "short"), *TURNS[2:]], {}, ("turn", LAST)),
        ([said("user", "hello")], {}, None),
        (TURNS[:2], {}, None),
        ([said("user", [{"type": "image_url", "image_url": {}}, {"type": "text", "text": 3}, "x"])], {}, None),
        (["no message"], {}, None),
        ("none", {}, None),
        ([*TURNS[:2], *[said("user", "more")] * 8], {}, None),
        ([said("tool", "\ud800" * 80)], {"tools": TOOLS}, ("file", "\ud800" * 80)),
    ],
)
def test_found_text_is_the_latest_that_is_worked_on(
    messages: object, extra: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    """As the answer will write it: inside of a call's JSON where tools may be called."""
    assert found_text({"messages": messages, **extra}) == expected


def test_found_text_of_huge_messages_is_bounded_and_quick() -> None:
    """Also where fences begin without an end."""
    for text in ("a" * 2**21, "```\n" * 2**15, "`" * 2**18, "```x\n" + "~~~\n" * 2**15):
        found = found_text({"messages": [said("user", text), said("assistant", text), said("user", text)]})

        assert found is None or len(found[1]) <= 2**18


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ""),
        ({"type": "content", "content": "abc"}, "abc"),
        ({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"type": "content", "content": ""}, ""),
        ({"type": "content", "content": 7}, ""),
        ("text", ""),
    ],
)
def test_own_prediction_is_its_text(given: object, expected: str) -> None:
    """Empty for whatever has none."""
    assert own_prediction({"prediction": given}) == expected


def answer(accepted: int | None, rejected: int | None = 0, tokens: int = 40) -> Behaviour:
    """An answer whose usage counts so many tokens of a prediction."""
    details = (
        {} if accepted is None else {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    )
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "completion_tokens_details": details}
    message = {"role": "assistant", "content": "done"}
    body = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    return Behaviour(body=msgspec.json.encode(body), content_type="application/json")


class Asked:
    """A stage around an upstream, and what the upstream was asked."""

    def __init__(self, server: OpenAIServer, backend: Backend) -> None:
        self.server = server
        self.backend = backend
        self.stage = Predicted(backend, PredictedPolicy(mode="predicted", near=0.8, least_accepted=0.5))

    async def ask(self, *behaviours: Behaviour, **fields: Any) -> Call:
        """A call of a conversation; `fields` go into its body."""
        self.server.next(*behaviours)
        call = make_call(extra={"messages": TURNS, **fields})
        reply = await self.stage.send(call)
        assert reply.status == 200, await read_all(reply)
        await read_all(reply)
        return call

    def told(self) -> list[Any]:
        """The prediction that each call came with, "absent" where there was none."""
        return [request.json().get("prediction", "absent") for request in self.server.requests]


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    async with OpenAIServer() as server:
        backend = OPENAI.build("up", OpenAIConfig.model_validate({"base_url": server.base_url}), SystemClock())
        yield Asked(server, backend)
        await backend.aclose()


async def test_a_prediction_that_is_taken_is_told_and_counted(asked: Asked) -> None:
    """As OpenAI wants it; the facts say what became of it, and where it came from."""
    call = await asked.ask(answer(30, 10))

    assert asked.told() == [{"type": "content", "content": LAST}]
    assert call.facts.speculation is not None
    assert (call.facts.speculation.draft, call.facts.speculation.drafted) == ("prediction:turn", 40)
    assert (call.facts.speculation.accepted, call.facts.speculation.ended) == (30, "")


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("own", [None, {"type": "content", "content": "mine"}])
async def test_a_refused_prediction_fails_no_call_and_is_remembered(asked: Asked, status: int, own: object) -> None:
    """Asked again without, the client's own left out too; with other fields beside it the upstream is tried anew."""
    refusal = error(status, "Unrecognized request argument supplied: prediction")
    fields = {} if own is None else {"prediction": own}

    first = await asked.ask(refusal, answer(None), logprobs=True, **fields)
    second = await asked.ask(answer(None), logprobs=True, **fields)
    third = await asked.ask(answer(9), **fields)

    expected = own or {"type": "content", "content": LAST}
    assert asked.told() == [expected, "absent", "absent", expected]
    assert first.facts.speculation is not None
    assert first.facts.speculation.ended == "refused"
    assert second.facts.speculation is not None
    assert second.facts.speculation.drafted == 0
    assert third.facts.speculation is not None
    assert third.facts.speculation.accepted == 9


async def test_another_error_of_the_upstream_is_the_clients(asked: Asked) -> None:
    """It is not asked twice for what has nothing to do with a prediction."""
    asked.server.next(error(400, "no such model"))

    reply = await asked.stage.send(make_call(extra={"messages": TURNS}))

    assert (reply.status, len(asked.server.requests)) == (400, 1)


@pytest.mark.parametrize("accepted", [None, 0, -1, 10**12, "many", 1.5])
async def test_an_upstream_that_counts_nothing_is_not_told_any_longer(asked: Asked, accepted: Any) -> None:
    """Whatever it says in place of a number; after some time it is tried again."""
    for _ in range(24):
        call = await asked.ask(answer(accepted))
        assert call.facts.speculation is not None
        assert call.facts.speculation.accepted == 0

    told = [prediction != "absent" for prediction in asked.told()]
    assert told[:3] == [True] * 3
    assert sum(told) == 4


async def test_tokens_that_are_mostly_rejected_are_not_paid_for_again(asked: Asked) -> None:
    """A source whose texts do not come true is left out for a while; another one is not."""
    for _ in range(10):
        await asked.ask(answer(1, 60))
    await asked.ask(answer(50, 1), prediction={"type": "content", "content": "mine"})

    told = [prediction != "absent" for prediction in asked.told()]
    assert told == [True] * 3 + [False] * 7 + [True]


async def test_streams_and_other_operations(asked: Asked) -> None:
    """A stream is told too, and counted at its end; what is no chat goes as it is."""
    call = make_call(extra={"messages": TURNS}, stream=True)
    await read_all(await asked.stage.send(call))
    await read_all(await asked.stage.send(make_call("hello", operation=Operation.COMPLETION)))

    assert asked.told() == [{"type": "content", "content": LAST}, "absent"]
    assert call.facts.speculation is not None


def test_what_is_known_of_an_upstream_is_bounded() -> None:
    """However many models callers name; and pauses end, longer each time."""
    taken = TakenPredictions()
    for number in range(10_000):
        taken.note_refusal(f"model-{number}", {})
    assert len(taken._models) <= 64

    passed = []
    for _ in range(2):
        taken.note_refusal("m", {"tools": [1]})
        passed.append(next(number for number in range(5000) if taken.takes("m", {"tools": [1], "n": 3}, "turn")))
        assert taken.takes("m", {}, "turn")
    assert passed == [15, 31]


def test_prediction_of_a_near_question_comes_before_the_calls_own_texts() -> None:
    """And the client's before all."""
    stage = Predicted(None, PredictedPolicy(mode="predicted", near=0.8, least_accepted=0.25))  # type: ignore[arg-type]  # nobody is asked
    near = Prediction("near", "cache")
    call = make_call(extra={"messages": TURNS}, predicted=near)
    own = make_call(extra={"prediction": {"type": "content", "content": "mine"}}, predicted=near)

    assert stage._prediction(call) == Prediction("near", "cache", 0.25)
    assert stage._prediction(own) == Prediction("mine", "client", 0.25)


async def test_a_draft_of_a_call_with_a_prediction_is_told_none(asked: Asked) -> None:
    """It is asked for other tokens than the answer's, by a body of its own."""
    events = (b'data: {"choices":[{"text":"a","token_ids":[7]}]}\n\n', b"data: [DONE]\n\n")
    asked.server.next(Behaviour(events=events, content_type="text/event-stream"))
    call = make_call(extra={"messages": TURNS}, predicted=Prediction(LAST, "turn"))
    drafter = Drafter(asked.backend, "", SystemClock())

    assert [tokens async for tokens in drafter.tokens(call, [1, 2], 4)] == [[7]]
    assert asked.told() == ["absent"]
