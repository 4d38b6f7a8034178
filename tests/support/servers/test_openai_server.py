"""The upstream that the other tests lean on: it misbehaves as told, and notices who leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.calls import event_values, streamed_text
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error, html_error, redirect

CHAT = {"model": "m", "messages": [{"role": "user", "content": "say this back"}]}
STREAM = {**CHAT, "stream": True}


@pytest.fixture
async def client(openai_server: OpenAIServer) -> AsyncIterator[httpx.AsyncClient]:
    """An ordinary client of the server."""
    async with httpx.AsyncClient(verify=False, base_url=openai_server.base_url, trust_env=False) as client:
        yield client


async def test_server_by_default_repeats_the_question(openai_server: OpenAIServer, client: httpx.AsyncClient) -> None:
    """A healthy answer, and the request on record as it came."""
    reply = await client.post("/chat/completions?beta=1", json=CHAT, headers={"X-Seen": "yes"})

    received = openai_server.requests[0]
    assert reply.json()["choices"][0]["message"]["content"] == "say this back"
    assert (received.method, received.path, received.header("x-seen")) == ("POST", "/v1/chat/completions", "yes")
    assert received.json() == CHAT
    assert received.body == reply.request.content


@pytest.mark.parametrize("asked", [False, True])
async def test_server_sends_usage_only_where_asked(client: httpx.AsyncClient, asked: bool) -> None:
    """`stream_options.include_usage` decides on the usage chunk, as with OpenAI."""
    extra: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}

    reply = await client.post("/chat/completions", json={**STREAM, **extra})

    assert any(value.get("usage") for value in event_values(reply.content)) is asked
    assert streamed_text(reply.content) == "say this back"


async def test_server_echoes_other_paths(client: httpx.AsyncClient) -> None:
    """What it does not know comes back byte for byte."""
    reply = await client.post("/audio/speech", content=b"\x00\xff", headers={"content-type": "audio/wav"})

    assert (reply.content, reply.headers["content-type"]) == (b"\x00\xff", "audio/wav")
    assert (await client.get("/models")).json()["data"][0]["id"] == "test-model"


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(gzip=True),
        Behaviour(drip=True),
        Behaviour(framing="eof"),
        Behaviour(framing="length"),
        Behaviour(event_delay_s=0.001),
    ],
    ids=["gzip", "drip", "eof", "length", "delay"],
)
async def test_server_framing_carries_the_same_stream(
    openai_server: OpenAIServer, client: httpx.AsyncClient, behaviour: Behaviour
) -> None:
    """However the bytes travel, they are the same."""
    plain = await client.post("/chat/completions", json=STREAM)
    openai_server.next(behaviour)

    reply = await client.post("/chat/completions", json=STREAM)

    assert reply.content == plain.content


@pytest.mark.parametrize(
    ("behaviour", "status", "content_type"),
    [
        (error(429, retry_after="2"), 429, "application/json"),
        (html_error(), 502, "text/html"),
        (redirect("/elsewhere"), 307, "application/json"),
        (Behaviour(content_type="text/plain"), 200, "text/plain"),
    ],
)
async def test_server_answers_once_as_told(
    openai_server: OpenAIServer, client: httpx.AsyncClient, behaviour: Behaviour, status: int, content_type: str
) -> None:
    """What `next` was told holds for one request."""
    openai_server.next(behaviour)

    reply, after = [await client.post("/chat/completions", json=CHAT) for _ in range(2)]

    assert (reply.status_code, reply.headers["content-type"]) == (status, content_type)
    assert reply.headers.get("retry-after") == ("2" if status == 429 else None)
    assert after.status_code == 200


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (Behaviour(cut_after_events=2), httpx.RemoteProtocolError),
        (Behaviour(cut_after_events=2, reset=True), httpx.ReadError),
        (Behaviour(cut_after_bytes=20, framing="length"), httpx.RemoteProtocolError),
        (Behaviour(raw=b""), httpx.RemoteProtocolError),
        (Behaviour(raw=b"SSH-2.0\r\n\r\n"), httpx.RemoteProtocolError),
    ],
    ids=["close", "reset", "bytes", "nothing", "garbage"],
)
async def test_server_cut_is_seen_by_the_client(
    openai_server: OpenAIServer, client: httpx.AsyncClient, behaviour: Behaviour, expected: type[Exception]
) -> None:
    """Every way of breaking off looks broken from outside."""
    openai_server.next(behaviour)

    with pytest.raises(expected):
        await client.post("/chat/completions", json=STREAM)


@pytest.mark.parametrize("behaviour", [Behaviour(stall_before_head=True), Behaviour(stall_after_events=2)])
async def test_server_notices_who_leaves(
    openai_server: OpenAIServer, client: httpx.AsyncClient, behaviour: Behaviour
) -> None:
    """A client that goes before its answer is whole is noticed, and when."""
    openai_server.next(Behaviour(), behaviour)
    await client.post("/chat/completions", json=STREAM)
    asking = asyncio.create_task(client.post("/chat/completions", json=STREAM))
    received = await openai_server.wait_request(1)

    asking.cancel()
    left_at = await openai_server.wait_disconnected(1)

    assert 0.0 <= left_at - received.at < 1.0
    with pytest.raises(TimeoutError):
        await openai_server.wait_disconnected(0, timeout_s=0.01)


async def test_server_refuses_and_accepts_again(openai_server: OpenAIServer, client: httpx.AsyncClient) -> None:
    """A server that went away comes back on the same port."""
    await openai_server.refuse()
    with pytest.raises(httpx.ConnectError):
        await client.get("/models")

    await openai_server.accept()

    assert (await client.get("/models")).status_code == 200


async def test_server_refuses_what_openai_would(client: httpx.AsyncClient) -> None:
    """A bad body is a 400 in OpenAI's shape."""
    reply = await client.post("/chat/completions", json={**CHAT, "n": 0})

    assert reply.status_code == 400
    assert json.loads(reply.content)["error"]["param"] == "n"
