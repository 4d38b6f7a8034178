"""Clients of HTTP/1.0: they know no chunks and no interim answers, and a connection ends with its answer."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.faults import CHAT, CaseServer, Setting
from tests.support.http_client import chat_body
from tests.support.servers.openai_server import Behaviour

_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
_EVENTS = (_EVENT, _EVENT, b"data: [DONE]\n\n")
_SOUND = Behaviour(body=b"ID3\x04" * 5000, content_type="audio/mpeg", framing="chunked")
_SPEECH = "/v1/audio/speech"


def _request(path: str, body: bytes, fields: bytes = b"", version: bytes = b"1.0") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    head = b"POST %b HTTP/%b\r\nhost: gateway\r\ncontent-type: application/json\r\n" % (path.encode(), version)
    return head + fields + length + b"\r\n" + body


def _parted(raw: bytes) -> tuple[list[bytes], bytes]:
    """The lines of the head, and the body."""
    head, _, body = raw.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), body


@pytest.mark.parametrize("fields", [b"", b"connection: keep-alive\r\n"], ids=["plain", "keep-alive"])
@pytest.mark.parametrize("version", [b"1.0", b"0.9"])
async def test_stream_to_an_old_client_is_its_events_and_ends_with_the_connection(
    plain: Setting, upstream: CaseServer, fields: bytes, version: bytes
) -> None:
    """No chunk sizes between the events, whatever it asks of the connection."""
    upstream.default = Behaviour(events=_EVENTS)
    head, body = _parted(await plain.gateway.raw(_request(CHAT, chat_body(stream=True), fields, version)))

    assert head[0] == b"HTTP/1.1 200 OK"
    assert not any(line.startswith(b"transfer-encoding") for line in head)
    assert b"connection: close" in head
    assert body == b"".join(_EVENTS)


async def test_whole_answer_to_an_old_client_has_its_length_and_ends_the_connection(
    plain: Setting, upstream: CaseServer
) -> None:
    """Keep-alive is an offer that the gateway leaves aside."""
    asked = _request(CHAT, chat_body("well said"), b"connection: keep-alive\r\n")
    head, body = _parted(await plain.gateway.raw(asked))

    assert b"content-length: %d" % len(body) in head
    assert b"connection: close" in head
    assert b"well said" in body
    assert upstream.num_asked["m"] == 1


@pytest.mark.usefixtures("upstream")
async def test_old_client_that_expects_to_be_told_to_go_on_gets_only_its_answer(plain: Setting) -> None:
    """RFC 9110, section 10.1.1: it would take `100 Continue` for the answer; its body comes in any case."""
    request = _request(CHAT, chat_body("go on"), b"expect: 100-continue\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", plain.gateway.port)
    head_end = request.index(b"\r\n\r\n") + 4
    async with asyncio.timeout(5):
        writer.write(request[:head_end])
        await plain.gateway.raw(_request(CHAT, chat_body()))
        writer.write(request[head_end:])
        head, body = _parted(await reader.read())
    writer.close()

    assert head[0] == b"HTTP/1.1 200 OK"
    assert b"go on" in body


async def test_stream_that_breaks_tells_an_old_client_so_in_an_event(plain: Setting, upstream: CaseServer) -> None:
    """The events that came, one of ours, and no `[DONE]`."""
    upstream.default = Behaviour(events=_EVENTS, cut_after_events=2)
    _, body = _parted(await plain.gateway.raw(_request(CHAT, chat_body(stream=True))))

    assert body.startswith(_EVENT * 2 + b'data: {"error":')
    assert body.endswith(b"}\n\n")
    assert b"[DONE]" not in body


async def test_body_that_is_no_events_comes_to_an_old_client_as_it_is(plain: Setting, upstream: CaseServer) -> None:
    """Sound, which has no length here as the gateway passes it on piece by piece."""
    upstream.default = _SOUND
    _, body = _parted(await plain.gateway.raw(_request(_SPEECH, chat_body())))

    assert body == _SOUND.body


async def test_body_that_breaks_off_does_not_end_for_an_old_client_as_a_whole_one_does(
    plain: Setting, upstream: CaseServer
) -> None:
    """A reset instead of an orderly close, by which such a client knows a whole body."""
    upstream.default = Behaviour(body=_SOUND.body, content_type="audio/mpeg", framing="chunked", cut_after_bytes=10_000)

    with pytest.raises(ConnectionResetError):
        await plain.gateway.raw(_request(_SPEECH, chat_body()))


@pytest.mark.usefixtures("upstream")
async def test_requests_behind_one_of_an_old_client_are_not_answered(plain: Setting) -> None:
    """The answer goes on to the end of the connection, so whatever came behind it would be part of it."""
    asked = _request(CHAT, chat_body("first", stream=True)) + _request(CHAT, chat_body("second"), version=b"1.1")
    raw = await plain.gateway.raw(asked)

    assert raw.count(b"HTTP/1.1 ") == 1
    assert b"second" not in raw


@pytest.mark.usefixtures("upstream")
async def test_request_of_an_old_client_behind_one_of_a_new_client_gets_its_own_framing(plain: Setting) -> None:
    """A stream in chunks, then one to the end of the connection."""
    asked = _request(CHAT, chat_body("first", stream=True), version=b"1.1") + _request(
        CHAT, chat_body("second", stream=True)
    )
    first, _, second = (await plain.gateway.raw(asked)).partition(b"\r\n0\r\n\r\n")

    assert b"\r\ntransfer-encoding: chunked\r\n" in first
    assert second.startswith(b"HTTP/1.1 200 OK")
    assert b"chunked" not in second
    assert second.endswith(b"data: [DONE]\n\n")


@pytest.mark.usefixtures("upstream")
async def test_head_of_a_page_to_an_old_client_has_no_body(plain: Setting) -> None:
    """And none of the framing of one."""
    head, body = _parted(await plain.gateway.raw(b"HEAD /health HTTP/1.0\r\nhost: gateway\r\n\r\n"))

    assert head[0] == b"HTTP/1.1 200 OK"
    assert not any(line.startswith(b"transfer-encoding") for line in head)
    assert body == b""
