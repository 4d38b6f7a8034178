"""The engine as a backend, beside what every backend owes its caller (see the contract suite)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

from backends.clock import SystemClock
from backends.engine.errors import OutOfMemory, RequestRefused
from backends.engine.request import Event, Request
from backends.errors import ConfigurationError, UnknownPath, UpstreamCut, UpstreamError
from backends.operations import Operation
from backends.protocol import Reply
from backends.serving.meter import Meter
from backends.serving.served_engine import EngineBackend, StartedEngine
from tests.support.calls import event_values, make_call, read_all, streamed_text
from tests.support.engine.fake_engine import FakeEngine, make_model

MAX_REQUESTS = 4


class Open(NamedTuple):
    """A backend and its engine."""

    backend: EngineBackend
    engine: FakeEngine


@pytest.fixture
async def one() -> AsyncIterator[Open]:
    """A backend that is open."""
    engine = FakeEngine()
    served = StartedEngine(engine, make_model(max_context=100), "fp_test")
    backend = EngineBackend("local", SystemClock(), lambda: served, meter=Meter("model", 8), max_requests=MAX_REQUESTS)
    await backend.open()
    yield Open(backend, engine)
    await backend.aclose()


async def error_of(reply: Reply) -> dict[str, Any]:
    """The error object of a reply."""
    error: dict[str, Any] = json.loads(await read_all(reply))["error"]
    return error


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_request_that_cannot_be_read_is_a_reply(one: Open, stream: bool) -> None:
    """A wrong field is an upstream's 400, so that policies see it as one; the engine never hears of it."""
    reply = await one.backend.send(make_call(extra={"stop": ""}, stream=stream))

    assert reply.status == 400
    assert (await error_of(reply))["param"] == "stop"
    assert one.engine.requests == []
    assert one.backend.statistics().in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_request_over_the_context_is_a_reply_with_its_code(one: Open, stream: bool) -> None:
    """Fallbacks to a longer context act on the code of a reply."""
    reply = await one.backend.send(make_call("x" * 101, stream=stream))

    assert reply.status == 400
    assert (await error_of(reply))["code"] == "context_length_exceeded"


@pytest.mark.parametrize("code", [None, "context_length_exceeded"])
@pytest.mark.parametrize("when", ["submit", "step"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_request_that_the_engine_refuses_is_a_reply(one: Open, stream: bool, when: str, code: str | None) -> None:
    """At once or at its first step: the engine's words, parameter and code reach the client with a 400."""
    refusal = RequestRefused("top_p is 7; it must be at most 1", param="top_p", code=code)
    if when == "submit":
        one.engine.refusal = refusal
    else:
        one.engine.events_instead = failing(refusal)

    reply = await one.backend.send(make_call(stream=stream))

    assert reply.status == 400
    assert await error_of(reply) == {
        "message": "top_p is 7; it must be at most 1",
        "type": "invalid_request_error",
        "param": "top_p",
        "code": code,
    }
    assert one.backend.statistics() == one.backend.statistics().__class__(sent=1)


def failing(error: Exception, after: int = 0) -> Any:
    """Events that end in an error."""

    def events(request: Request) -> Iterator[Event]:
        for _ in range(after):
            yield Event(request_id=request.id, text="word ")
        yield Event(request_id=request.id, finish_reason="error", error=error, is_last=True)

    return events


async def test_request_that_fails_takes_no_other_with_it(one: Open) -> None:
    """One request runs out of memory in the middle; its neighbour is answered."""
    one.engine.events_instead = failing(OutOfMemory("no page is left"), after=1)
    failed = await one.backend.send(make_call(stream=True))
    one.engine.events_instead = None
    good = await one.backend.send(make_call("all is well"))

    with pytest.raises(UpstreamError, match="no page is left") as failure:
        await read_all(failed)
    assert not isinstance(failure.value, UpstreamCut)
    assert json.loads(await read_all(good))["choices"][0]["message"]["content"] == "all is well"
    assert (one.backend.statistics().sent, one.backend.statistics().failed) == (2, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_that_are_left_out_are_said_in_the_answers_head(one: Open, stream: bool) -> None:
    """And nothing is said where none were."""
    tools = [{"type": "web_search"}, {"type": "local_shell"}]
    with_tools = await one.backend.send(make_call(stream=stream, extra={"tools": tools}))
    without = await one.backend.send(make_call(stream=stream))

    assert with_tools.header(b"x-slipstream-skipped-tools") == b"web_search,local_shell"
    assert without.header(b"x-slipstream-skipped-tools") is None
    for reply in (with_tools, without):
        await read_all(reply)


async def test_prompt_that_fails_gives_up_the_others_of_its_call(one: Open) -> None:
    """A completion of three prompts is one answer, so nothing goes on working for it."""
    one.engine.stall_after = 0
    call = make_call(operation=Operation.COMPLETION, extra={"prompt": ["a", "b", "c"]})
    sending = asyncio.create_task(one.backend.send(call))
    async with asyncio.timeout(10):
        while len(one.engine.requests) < 3:
            await asyncio.sleep(0.001)
    lost = one.engine.requests[1].id

    one.engine.say([Event(request_id=lost, finish_reason="error", error=OutOfMemory("no page"), is_last=True)])

    with pytest.raises(UpstreamError):
        await sending
    assert set(one.engine.aborted) == {request.id for request in one.engine.requests}
    assert one.backend.statistics().in_flight == 0


async def test_calls_over_the_limit_get_429(one: Open) -> None:
    """What is in hand is bounded; who comes too many is told to come back, and nothing of it reaches the engine."""
    one.engine.stall_after = 1
    held = [await one.backend.send(make_call("a b", stream=True)) for _ in range(MAX_REQUESTS)]

    refused = await one.backend.send(make_call())
    await held[0].aclose()
    one.engine.stall_after = None
    taken = await one.backend.send(make_call())

    assert (refused.status, refused.header(b"retry-after")) == (429, b"1")
    assert (await error_of(refused))["code"] == "too_many_requests"
    assert taken.status == 200
    assert len(one.engine.requests) == MAX_REQUESTS + 1
    for reply in held:
        await reply.aclose()


async def test_limit_counts_answers(one: Open) -> None:
    """A call for many answers is as much work as many calls."""
    one.engine.stall_after = 1
    held = await one.backend.send(make_call("a b", stream=True, extra={"n": MAX_REQUESTS}))

    refused = await one.backend.send(make_call())
    await held.aclose()
    one.engine.stall_after = None
    taken = await one.backend.send(make_call())

    assert (refused.status, taken.status) == (429, 200)


async def test_sink_is_one_for_all_calls(one: Open) -> None:
    """So the engine hands over a step of all of them at once."""
    for reply in await asyncio.gather(*(one.backend.send(make_call()) for _ in range(3))):
        await read_all(reply)

    assert len(one.engine.sinks) == 1


async def test_client_that_is_slow_gets_what_has_come_in_one_piece(one: Open) -> None:
    """The engine is not held up by who reads slowly, and nothing is lost."""
    one.engine.delay_s = 0.005
    reply = await one.backend.send(make_call("one two three four", stream=True))
    assert reply.stream is not None
    async with asyncio.timeout(10):
        while one.engine.num_active:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)

    first = await reply.stream.read()
    rest = await reply.stream.read()

    assert streamed_text(first) == "one "
    assert streamed_text(first + rest) == "one two three four"
    assert rest.endswith(b"data: [DONE]\n\n")
    assert await reply.stream.read() == b""
    await reply.aclose()


async def test_client_that_leaves_is_no_failure_of_the_engine(one: Open) -> None:
    """A stream closed early is aborted in the engine, and counted as sent only."""
    one.engine.stall_after = 1
    reply = await one.backend.send(make_call("a b", stream=True))

    await reply.aclose()

    assert one.engine.aborted == [one.engine.requests[0].id]
    assert (one.backend.statistics().sent, one.backend.statistics().failed) == (1, 0)


async def test_events_after_an_abort_are_dropped(one: Open) -> None:
    """A step that was under way when the client left says nothing to anybody."""
    one.engine.stall_after = 1
    reply = await one.backend.send(make_call("a b", stream=True))
    await reply.aclose()

    one.engine.say([Event(request_id=one.engine.requests[0].id, text="late")])
    await asyncio.sleep(0.01)

    assert one.backend.statistics().in_flight == 0


async def test_embedding_of_a_streaming_client_is_whole(one: Open) -> None:
    """Vectors have no stream; a client's habit of asking for one changes nothing."""
    reply = await one.backend.send(make_call(operation=Operation.EMBEDDING, stream=True))

    assert reply.stream is None
    assert json.loads(await read_all(reply))["object"] == "list"


async def test_completion_streams_every_prompt(one: Open) -> None:
    """Two prompts in one call are two choices of one stream, whose end is the end of both."""
    extra = {"prompt": ["a b", "c d e"]}

    reply = await one.backend.send(make_call(operation=Operation.COMPLETION, extra=extra, stream=True))
    values = event_values(await read_all(reply))

    texts = ["", ""]
    for choice in [choice for value in values for choice in value["choices"]]:
        texts[choice["index"]] += choice["text"]
    assert texts == ["a b", "c d e"]
    assert values[-1]["usage"]["prompt_tokens"] == 8


async def test_context_is_known_once_the_model_is_loaded() -> None:
    """Before that there is nothing to say about it."""
    engine = FakeEngine()
    served = StartedEngine(engine, make_model(max_context=77), "fp")
    backend = EngineBackend("local", SystemClock(), lambda: served, meter=Meter("model", 8), max_requests=1)
    before = backend.capabilities.max_context_tokens

    await backend.open()

    assert (before, backend.capabilities.max_context_tokens) == (None, 77)
    await backend.aclose()


async def test_model_that_cannot_be_loaded_fails_the_opening() -> None:
    """What is wrong with a folder ends the start, or refuses a reload; the backend can still be closed."""

    def start() -> StartedEngine:
        raise ConfigurationError("backends.local.model: there is no config.json in /nowhere")

    backend = EngineBackend("local", SystemClock(), start, meter=Meter("model", 8), max_requests=1)

    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        await backend.open()
    await backend.aclose()


async def test_other_paths_are_unknown(one: Open) -> None:
    """It answers what a model can answer."""
    with pytest.raises(UnknownPath):
        await one.backend.send(make_call(operation=Operation.PASSTHROUGH))
