"""Clients that abuse HTTP itself: refused in OpenAI's shape or closed, nothing smuggled, little memory held."""

from __future__ import annotations

import asyncio
import json
import re
import socket

import pytest

from backends.errors import error_body
from tests.support.faults import CHAT, CaseServer, Setting
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_SOCKETS = 2000
_MAX_KIB_PER_SOCKET = 20
_BODY = chat_body()
_REQUEST = request_bytes(CHAT, _BODY)
_HEAD = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
_SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n\r\n"
_CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)
_ABUSES = {
    "length and chunked": _HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + _CHUNKED + _SMUGGLED,
    "two lengths": _HEAD + b"content-length: 5\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY + _SMUGGLED,
    "negative length": _HEAD + b"content-length: -1\r\n\r\n" + _BODY,
    "length that is no number": _HEAD + b"content-length: 0x10\r\n\r\n" + _BODY,
    "chunked, then something else": _HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n" + _CHUNKED,
    "blank before the colon": _HEAD + b"content-length : 5\r\n\r\n" + _BODY,
    "null byte in a field": _HEAD + b"x-a: b\0c\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY,
    "line feed in a field": _HEAD + b"x-a: b\nx-injected\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY,
    "name with a blank": _HEAD + b"x a: b\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY,
    "chunk size that is no number": _HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n" + _BODY,
    "chunk size beyond all bounds": _HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n" + _BODY,
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 50 + b"\r\n\r\n",
    "version 9": b"POST /v1/chat/completions HTTP/9.9\r\n\r\n",
}


@pytest.mark.parametrize("abuse", _ABUSES)
async def test_request_that_can_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_answered(
    plain: Setting, upstream: CaseServer, abuse: str
) -> None:
    """One answer, 400 in OpenAI's shape, and the connection is closed."""
    raw = await plain.gateway.raw(_ABUSES[abuse], timeout_s=3)
    head, _, body = raw.partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}
    assert len(re.findall(rb"HTTP/1.1 \d", raw)) == 1
    assert not upstream.num_asked


async def test_host_with_underscore_twins_do_not_stand_for_fields(plain: Setting, upstream: CaseServer) -> None:
    """`x_request_id` is not `x-request-id`, and a client cannot set what only the gateway says upstream."""
    extra = b"content_length: 3\r\ntransfer_encoding: chunked\r\n"
    client = await HttpClient.open(plain.gateway.port)
    client.send(_HEAD + extra + b"content-length: %d\r\n\r\n" % len(_BODY) + _BODY)
    answer = await client.answer()
    client.close()

    assert answer.status == 200
    assert upstream.last["m"].body == _BODY


@pytest.mark.parametrize("size", [200_000, 5_000_000])
@pytest.mark.usefixtures("upstream")
async def test_head_of_any_size_is_not_taken(plain: Setting, size: int) -> None:
    """One long field, or many: 431 once 64 KiB (128 at most) are here."""
    before_mib = plain.gateway.rss_mib()
    for field in (b"x-a: " + b"b" * size, b"x-a: b\r\n" * (size // 8)):
        client = await HttpClient.open(plain.gateway.port)
        client.send(_HEAD + field)
        answer = await client.answer(timeout_s=3)
        client.close()

        assert answer.status == 431
        assert answer.error() is not None
    assert plain.gateway.rss_mib() - before_mib <= 8


@pytest.mark.usefixtures("upstream")
async def test_garbage_behind_a_request_does_not_get_into_its_answer(plain: Setting, upstream: CaseServer) -> None:
    """A stream is running when the client sends what is no request: the stream is cut, nothing is written into it."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
    upstream.default = Behaviour(events=(event,) * 10, stall_after_events=3)
    client = await HttpClient.open(plain.gateway.port)
    client.send(request_bytes(CHAT, chat_body(stream=True)))
    await client.wait_body(3 * len(event))
    client.send(b"\0\0\0 no request\r\n\r\n")
    answer = await client.answer(timeout_s=3)

    assert bytes(answer.body) == event * 3
    assert not answer.is_whole


@pytest.mark.usefixtures("upstream")
async def test_requests_sent_ahead_are_answered_in_their_order(plain: Setting) -> None:
    """Pipelining, with blank lines between."""
    bodies = [chat_body(f"number {number}") for number in range(5)]
    client = await HttpClient.open(plain.gateway.port)
    client.send(b"\r\n".join(request_bytes(CHAT, body) for body in bodies))
    text = b""
    async with asyncio.timeout(5):
        while text.count(b"number") < 5:
            await client.wait(lambda: client.current.is_whole)
            text += (await client.answer()).body
    client.close()

    assert [text.index(b"number %d" % number) for number in range(5)] == sorted(
        text.index(b"number %d" % number) for number in range(5)
    )


async def test_idle_connections_cost_little(plain: Setting) -> None:
    """Two thousand clients that say nothing, or only half a line, hold 20 KiB each at most, and others are served."""
    before_mib = plain.gateway.rss_mib()
    sockets = [socket.create_connection(("127.0.0.1", plain.gateway.port)) for _ in range(_SOCKETS)]
    try:
        for raw in sockets[::2]:
            raw.send(b"POST /v1/chat/comp")
        probe = await HttpClient.open(plain.gateway.port)
        probe.send(b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n")

        assert (await probe.answer()).status == 200
        assert (plain.gateway.rss_mib() - before_mib) * 1024 / _SOCKETS <= _MAX_KIB_PER_SOCKET
        probe.close()
    finally:
        for raw in sockets:
            raw.close()


def test_error_shape_is_the_one_that_is_compared_with() -> None:
    """The shape that this file asks for is the one of all errors."""
    assert json.loads(error_body("no", type="t"))["error"].keys() == {"message", "type", "param", "code"}
