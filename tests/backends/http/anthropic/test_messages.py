"""`type: anthropic` over real sockets: what is sent, what comes back, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from backends.charges.usage import Usage
from backends.clock import SystemClock
from backends.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    InvalidRequest,
    StreamStalled,
    UnknownPath,
    UpstreamCut,
    UpstreamErrorEvent,
    UpstreamGarbage,
    UpstreamRejectedKey,
)
from backends.http.anthropic.messages import KIND, AnthropicConfig
from backends.operations import Operation
from backends.protocol import Backend, Timeouts
from backends.sse import DONE_EVENT
from backends.stream import StreamEnd
from tests.support.calls import event_values, make_call, read_all, streamed_text
from tests.support.servers.anthropic_server import (
    KEY,
    Answer,
    AnthropicServer,
    make_error,
    make_event,
    make_message,
    message_events,
    text_block,
    tool_block,
)


def make_backend(**settings: Any) -> Backend:
    """A backend built as the gateway builds it, its key taken from an environment."""
    config = AnthropicConfig.model_validate(
        {"api_key": "env:KEY", **settings}, context={"environ": {"KEY": KEY, "WRONG": "wrong"}}
    )
    return KIND.build("claude", config, SystemClock())


@pytest.fixture
async def server() -> AsyncIterator[AnthropicServer]:
    """The upstream, listening."""
    async with AnthropicServer() as server:
        yield server


@pytest.fixture
async def backend(server: AnthropicServer) -> AsyncIterator[Backend]:
    """The backend, pointed at it."""
    backend = make_backend(base_url=server.base_url)
    await backend.open()
    yield backend
    await backend.aclose()


async def test_send_whole_answer_is_a_chat_completion_and_fills_the_facts(backend: Backend) -> None:
    """One call there and back."""
    call = make_call()

    reply = await backend.send(call)

    answer = msgspec.json.decode(await read_all(reply))
    assert answer["choices"][0]["message"]["content"] == "Hello there."
    assert reply.header(b"content-type") == b"application/json"
    assert reply.header(b"x-upstream-request-id") == b"req_01"
    facts = call.facts
    assert facts.usage == Usage(10, 5, 0)
    assert facts.upstream_request_id == "req_01"
    assert facts.upstream_model == "claude-test-1"
    assert facts.sent_at is not None
    assert facts.first_token_at is not None
    assert facts.sent_at <= facts.first_token_at


async def test_send_stream_is_chunks_with_usage_and_done_and_fills_the_facts(backend: Backend) -> None:
    """The same answer as events; the usage chunk comes whether or not it was asked for."""
    call = make_call(stream=True)

    reply = await backend.send(call)

    assert call.facts.first_token_at is not None
    got = await read_all(reply)
    assert (reply.header(b"content-type") or b"").startswith(b"text/event-stream")
    assert streamed_text(got) == "Hello there."
    assert event_values(got)[-1]["usage"]["total_tokens"] == 15
    assert got.endswith(DONE_EVENT)
    assert call.facts.stream_end is StreamEnd.CLEAN
    assert call.facts.usage == Usage(10, 5, 0)


async def test_send_headers_are_ours_and_not_the_clients(server: AnthropicServer) -> None:
    """The gateway's key, version and betas go out; of the client's fields only the trace."""
    backend = make_backend(base_url=server.base_url + "/", version="2026-10-21", beta=["a-2026-01-01", "b-2026-01-01"])
    client_headers = [
        (b"traceparent", b"00-1-2-01"),
        (b"user-agent", b"client"),
        (b"anthropic-beta", b"theirs"),
        (b"x-api-key", b"theirs"),
    ]

    await read_all(await backend.send(make_call(headers=client_headers, request_id="req-9")))
    await backend.aclose()

    sent = server.requests[0]
    assert sent.target == "/v1/messages"
    assert {name: value for name, value in sent.headers.items() if name not in ("host", "content-length")} == {
        "x-api-key": KEY,
        "anthropic-version": "2026-10-21",
        "anthropic-beta": "a-2026-01-01,b-2026-01-01",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "slipstream",
        "traceparent": "00-1-2-01",
        "x-request-id": "req-9",
    }


async def test_send_limit_of_the_answer_is_the_configured_one_where_the_client_has_none(
    server: AnthropicServer,
) -> None:
    """The API demands a limit; the route's own model name goes with it."""
    backend = make_backend(base_url=server.base_url, max_tokens=123)

    await read_all(await backend.send(make_call(model="claude-x")))
    await read_all(await backend.send(make_call(extra={"max_tokens": 7})))
    await backend.aclose()

    assert [request.body["max_tokens"] for request in server.requests] == [123, 7]
    assert server.requests[0].body["model"] == "claude-x"


@pytest.mark.parametrize("stream", [False, True])
async def test_send_tool_call_goes_round(server: AnthropicServer, backend: Backend, stream: bool) -> None:
    """What the model called comes back from the client as the same block, with its result behind it."""
    used = tool_block("toolu_1", "weather", {"city": "Zürich"})
    server.message = make_message(used, stop_reason="tool_use")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    asked = [{"role": "user", "content": "Weather?"}]

    got = await read_all(await backend.send(make_call(stream=stream, extra={"messages": asked, "tools": tools})))
    if stream:
        parts = [p for v in event_values(got) for c in v["choices"] for p in c["delta"].get("tool_calls", ())]
        arguments = "".join(part["function"]["arguments"] for part in parts)
        calls = [{**parts[0], "function": {"name": parts[0]["function"]["name"], "arguments": arguments}}]
    else:
        calls = msgspec.json.decode(got)["choices"][0]["message"]["tool_calls"]
    told = [
        *asked,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "12 C"},
    ]
    await read_all(await backend.send(make_call(extra={"messages": told, "tools": tools})))

    _, assistant, result = server.requests[1].body["messages"]
    assert assistant["content"] == [{key: used[key] for key in ("type", "id", "name", "input")}]
    assert result["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "12 C"}]}
    ]


@pytest.mark.parametrize("operation", [operation for operation in Operation if operation is not Operation.CHAT])
async def test_send_other_operation_is_refused_before_anything_is_sent(
    server: AnthropicServer, backend: Backend, operation: Operation
) -> None:
    """Only chat has a counterpart here, and the capabilities say so."""
    with pytest.raises(UnknownPath, match="chat/completions only"):
        await backend.send(make_call(operation=operation))

    assert backend.capabilities.operations == {Operation.CHAT}
    assert server.requests == []


async def test_send_call_without_counterpart_is_refused_before_anything_is_sent(
    server: AnthropicServer, backend: Backend
) -> None:
    """A request error of ours costs no upstream call and counts no attempt."""
    call = make_call(extra={"n": 2})

    with pytest.raises(InvalidRequest):
        await backend.send(call)

    assert server.requests == []
    assert call.facts.sent_at is None


@pytest.mark.parametrize("stream", [False, True])
async def test_send_upstream_error_is_a_reply(server: AnthropicServer, backend: Backend, stream: bool) -> None:
    """Streamed or not, an error before the first byte is a real error answer with its Retry-After."""
    body = msgspec.json.encode(make_error("rate_limit_error", "slow down"))
    server.answer = Answer(status=429, body=body, headers={"retry-after": "7"})

    reply = await backend.send(make_call(stream=stream))

    assert (reply.status, reply.stream) == (429, None)
    assert reply.header(b"retry-after") == b"7"
    assert reply.header(b"content-type") == b"application/json"
    assert msgspec.json.decode(reply.body or b"")["error"]["code"] == "rate_limit_exceeded"


async def test_send_wrong_key_is_the_gateways_trouble(server: AnthropicServer) -> None:
    """The upstream's 401 is not the client's."""
    backend = make_backend(base_url=server.base_url, api_key="env:WRONG")

    with pytest.raises(UpstreamRejectedKey):
        await backend.send(make_call())
    await backend.aclose()


@pytest.mark.parametrize(("type", "status"), [("overloaded_error", 503), ("rate_limit_error", 429)])
async def test_send_stream_that_begins_overloaded_is_an_error_reply(
    server: AnthropicServer, backend: Backend, type: str, status: int
) -> None:
    """Nothing was answered yet, so the client gets a status that it may retry; pings before it do not matter."""
    server.answer = Answer(events=[make_event("ping"), make_event(**make_error(type, "busy"))])

    reply = await backend.send(make_call(stream=True))

    assert (reply.status, reply.stream) == (status, None)
    assert msgspec.json.decode(reply.body or b"")["error"]["message"] == "busy"


async def test_send_stream_that_begins_with_another_error_raises(server: AnthropicServer, backend: Backend) -> None:
    """A 200 that is none; its connection is not left open."""
    server.answer = Answer(events=[make_event(**make_error("api_error", "oops"))], hold=True)

    with pytest.raises(UpstreamErrorEvent):
        await backend.send(make_call(stream=True))

    await asyncio.wait_for(server.client_left.wait(), 5)
    assert backend.statistics().in_flight == 0


async def test_send_error_in_the_middle_of_a_stream_ends_it_as_an_error(
    server: AnthropicServer, backend: Backend
) -> None:
    """What was already streamed stands; the end is typed."""
    events = message_events(server.message)
    server.answer = Answer(events=[*events[:5], make_event(**make_error("overloaded_error", "busy"))])
    call = make_call(stream=True)
    reply = await backend.send(call)

    with pytest.raises(UpstreamErrorEvent):
        await read_all(reply)

    assert call.facts.stream_end is StreamEnd.ERROR


@pytest.mark.parametrize("num_events", [0, 1, 5, 8])
async def test_send_stream_that_the_network_cuts_never_ends_clean(
    server: AnthropicServer, backend: Backend, num_events: int
) -> None:
    """Before the first event there is no reply, after it a typed end."""
    server.answer = Answer(events=message_events(server.message)[:num_events], cut=True)
    call = make_call(stream=True)

    with pytest.raises(UpstreamCut):
        await read_all(await backend.send(call))

    assert call.facts.stream_end is (StreamEnd.UPSTREAM_CUT if num_events else None)


@pytest.mark.parametrize("events", [[], [make_event("ping")]], ids=["nothing", "pings"])
async def test_send_stream_without_a_first_event_times_out(
    server: AnthropicServer, backend: Backend, events: list[bytes]
) -> None:
    """A head, even with pings, is not an answer."""
    server.answer = Answer(events=events, hold=True)

    with pytest.raises(FirstTokenTimeout):
        await backend.send(make_call(stream=True, timeouts=Timeouts(first_token_s=0.05, total_s=5.0)))

    await asyncio.wait_for(server.client_left.wait(), 5)


async def test_send_stream_that_goes_silent_is_a_stall(server: AnthropicServer, backend: Backend) -> None:
    """After the first event the idle limit counts."""
    server.answer = Answer(events=message_events(server.message)[:5], hold=True)
    call = make_call(stream=True, timeouts=Timeouts(stream_idle_s=0.05, total_s=5.0))
    reply = await backend.send(call)

    with pytest.raises(StreamStalled):
        await read_all(reply)

    assert call.facts.stream_end is StreamEnd.STALL


async def test_send_client_that_leaves_cancels_the_upstream(server: AnthropicServer, backend: Backend) -> None:
    """Closing the reply in the middle closes the connection."""
    server.answer = Answer(events=message_events(server.message)[:5], hold=True)
    call = make_call(stream=True)
    reply = await backend.send(call)
    assert reply.stream is not None
    await reply.stream.read()

    await reply.aclose()

    await asyncio.wait_for(server.client_left.wait(), 5)
    assert call.facts.stream_end is StreamEnd.CLIENT_GONE


async def test_send_client_that_leaves_at_done_has_the_whole_answer(server: AnthropicServer, backend: Backend) -> None:
    """The body may end a moment later than the answer, and nobody waits for that."""
    server.answer = Answer(events=message_events(server.message), hold=True)
    call = make_call(stream=True)
    reply = await backend.send(call)
    assert reply.stream is not None
    while not (await reply.stream.read()).endswith(DONE_EVENT):
        pass

    await reply.aclose()

    assert call.facts.stream_end is StreamEnd.CLEAN


async def test_send_cancelled_while_waiting_cancels_the_upstream(server: AnthropicServer, backend: Backend) -> None:
    """Nobody waits for the first event any more, so nobody shall produce it."""
    server.answer = Answer(events=[make_event("ping")], hold=True)
    sending = asyncio.ensure_future(backend.send(make_call(stream=True)))
    while not server.requests:
        await asyncio.sleep(0)

    sending.cancel()

    with pytest.raises(asyncio.CancelledError):
        await sending
    await asyncio.wait_for(server.client_left.wait(), 5)


@pytest.mark.parametrize(
    ("answer", "stream"),
    [
        (Answer(body=b"<html></html>", content_type="text/html"), False),
        (Answer(body=b"{}"), True),
        (Answer(status=502, body=b"<html></html>"), False),
        (Answer(body=msgspec.json.encode(make_message(text_block("x" * 5000)))), False),
    ],
    ids=["html", "no_stream", "proxy_error", "too_long"],
)
async def test_send_answer_that_is_none_is_garbage(server: AnthropicServer, answer: Answer, stream: bool) -> None:
    """Something else than asked, or more than configured, is not passed on."""
    backend = make_backend(base_url=server.base_url, max_answer="4KiB")
    server.answer = answer

    with pytest.raises(UpstreamGarbage):
        await backend.send(make_call(stream=stream))
    await backend.aclose()


async def test_send_calls_in_a_row_share_a_connection(server: AnthropicServer, backend: Backend) -> None:
    """Whole, streamed and failed answers all leave the connection fit for the next."""
    await read_all(await backend.send(make_call()))
    await read_all(await backend.send(make_call(stream=True)))
    server.answer = Answer(status=400, body=msgspec.json.encode(make_error("invalid_request_error", "no")))
    await read_all(await backend.send(make_call()))
    server.answer = None
    await read_all(await backend.send(make_call(stream=True)))

    statistics = backend.statistics()
    assert (statistics.connections_opened, statistics.in_flight) == (1, 0)


async def test_send_without_an_upstream_fails_to_connect() -> None:
    """Nothing was sent, so another attempt is safe."""
    backend = make_backend(base_url="http://127.0.0.1:1/v1")

    with pytest.raises(ConnectFailed):
        await backend.send(make_call())
    await backend.aclose()


def test_config_defaults_point_at_the_public_api() -> None:
    """An empty section is a usable one."""
    config = AnthropicConfig.model_validate({})

    assert (config.base_url, config.version, config.max_tokens) == ("https://api.anthropic.com/v1", "2023-06-01", 4096)


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "api.anthropic.com"},
        {"base_url": "https://user:key@host/v1"},
        {"base_url": "https://host/v1?x=1"},
        {"api_key": "sk-ant-pasted"},
        {"api_key": "env:MISSING"},
        {"version": "2023\r\nx: y"},
        {"beta": ["a,b"]},
        {"max_tokens": 0},
        {"unknown": 1},
    ],
    ids=str,
)
def test_config_bad_setting_is_refused(settings: dict[str, Any]) -> None:
    """At load, not at the first call."""
    with pytest.raises(ValidationError):
        make_backend(**settings)


def test_config_key_is_not_shown() -> None:
    """Neither the settings nor the backend tell the secret."""
    config = AnthropicConfig.model_validate({"api_key": "env:KEY"}, context={"environ": {"KEY": KEY}})
    backend: Backend = KIND.build("claude", config, SystemClock())

    assert KEY not in repr(config) + repr(backend)
