"""Bytes that are not quite HTTP: nothing is smuggled, nothing hangs, and the gateway lives on."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.e2e.conftest import ENVIRON
from tests.support.gateway import Gateway
from tests.support.servers.openai_server import OpenAIServer

KEY = f"authorization: Bearer {ENVIRON['DEV_KEY']}\r\n".encode()
CHAT = b'{"model":"plain","messages":[{"role":"user","content":"hi"}]}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" + KEY
SMUGGLED = b"GET /v1/files/smuggled HTTP/1.1\r\nhost: x\r\n" + KEY + b"\r\n"


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


SMUGGLING = {
    "length_and_chunked": HEAD
    + b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % len(_chunked(CHAT))
    + _chunked(CHAT)
    + SMUGGLED,
    "chunked_and_length": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n" + _chunked(CHAT) + SMUGGLED,
    "two_lengths": HEAD + b"content-length: %d\r\ncontent-length: 0\r\n\r\n" % len(CHAT) + CHAT + SMUGGLED,
    "length_list": HEAD + b"content-length: %d, 0\r\n\r\n" % len(CHAT) + CHAT + SMUGGLED,
    "signed_length": HEAD + b"content-length: +%d\r\n\r\n" % len(CHAT) + CHAT + SMUGGLED,
    "negative_length": HEAD + b"content-length: -1\r\n\r\n" + CHAT + SMUGGLED,
    "hex_length": HEAD + b"content-length: 0x3d\r\n\r\n" + CHAT + SMUGGLED,
    "huge_length": HEAD + b"content-length: 99999999999999999999\r\n\r\n" + CHAT + SMUGGLED,
    "odd_coding": HEAD + b"transfer-encoding: xchunked\r\n\r\n" + _chunked(CHAT) + SMUGGLED,
    "coding_twice": HEAD
    + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n"
    + _chunked(CHAT)
    + SMUGGLED,
    "space_before_colon": HEAD + b"content-length : %d\r\n\r\n" % len(CHAT) + CHAT + SMUGGLED,
    "folded_header": HEAD + b"x-a: 1\r\n content-length: 5\r\n\r\n" + CHAT + SMUGGLED,
    "bad_chunk_size": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + CHAT + b"\r\n0\r\n\r\n" + SMUGGLED,
    "chunk_too_long": HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\n" + CHAT + b"\r\n0\r\n\r\n" + SMUGGLED,
    "nul_in_header": HEAD + b"x-a: a\x00b\r\ncontent-length: %d\r\n\r\n" % len(CHAT) + CHAT,
    "bare_cr_in_header": HEAD + b"x-a: a\rx-b: c\r\ncontent-length: %d\r\n\r\n" % len(CHAT) + CHAT,
    "space_in_name": HEAD + b"x a: b\r\ncontent-length: %d\r\n\r\n" % len(CHAT) + CHAT,
    "no_name": HEAD + b": b\r\ncontent-length: %d\r\n\r\n" % len(CHAT) + CHAT,
}


@pytest.mark.parametrize("request_bytes", SMUGGLING.values(), ids=SMUGGLING.keys())
async def test_ambiguous_request_smuggles_nothing(
    gateway: Gateway, upstream: OpenAIServer, request_bytes: bytes
) -> None:
    """Two ways to read it: it is refused, and what stands behind it is never taken for a request."""
    answer = await _answer_of(gateway, request_bytes)

    assert answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert answer.count(b"HTTP/1.1 4") == 1
    assert all("smuggled" not in request.target for request in upstream.requests)
    assert upstream.requests == []


@pytest.mark.parametrize(
    "name_and_value",
    ["x-a: 1%0d%0ax-evil: 1", "x-request-id: a%0d%0ax-evil: 1", "traceparent: 00-a\tb"],
)
async def test_encoded_line_ends_stay_text(gateway: Gateway, upstream: OpenAIServer, name_and_value: str) -> None:
    """A percent-encoded CRLF in a value is a value; nothing downstream decodes it into a header."""
    request = HEAD + f"{name_and_value}\r\ncontent-length: {len(CHAT)}\r\nconnection: close\r\n\r\n".encode() + CHAT

    answer = await gateway.raw(request)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nx-evil" not in answer.lower()
    assert upstream.requests[0].header("x-evil") is None


async def test_encoded_line_ends_in_a_path_end_here(gateway: Gateway, upstream: OpenAIServer) -> None:
    """No path of the API has any."""
    target = b"/v1/files/a%0d%0ax-evil:%201"
    answer = await gateway.raw(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + KEY + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 404 ")
    assert upstream.requests == []


@pytest.mark.parametrize("target", [b"/v1/files/a%20b:c", b"/v1/files?x=%0d%0ax-evil:%201"])
async def test_encoded_bytes_of_a_target_stay_encoded(gateway: Gateway, upstream: OpenAIServer, target: bytes) -> None:
    """The target goes upstream as it was written."""
    await gateway.raw(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + KEY + b"\r\n")

    assert upstream.requests[0].target.encode() == target
    assert upstream.requests[0].header("x-evil") is None


@pytest.mark.parametrize(
    "target", [b"/v1/files/\xff\xfe", b"/v1/files/\xc3\xa9", b"/v1/files?q=\xff", b"/v1/chat/completions?q=\xc3\xa9"]
)
async def test_bytes_outside_ascii_in_a_target_are_refused(
    gateway: Gateway, upstream: OpenAIServer, target: bytes
) -> None:
    """HTTP has none there; the client is told to encode them."""
    method = b"POST " if b"chat" in target else b"GET "
    body = CHAT if b"chat" in target else b""
    answer = await gateway.raw(
        method
        + target
        + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        + KEY
        + b"content-length: %d\r\n\r\n" % len(body)
        + body
    )

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert upstream.requests == []


@pytest.mark.parametrize(("num_bytes", "expected"), [(10_000, b"200"), (60_000, b"200"), (300_000, b"431")])
async def test_head_is_bounded(gateway: Gateway, upstream: OpenAIServer, num_bytes: int, expected: bytes) -> None:
    """Long heads are served, absurd ones refused without being kept."""
    request = HEAD + b"x-long: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (b"a" * num_bytes, len(CHAT))

    answer = await _answer_of(gateway, request + CHAT)

    # A client that is still writing may see its connection reset before it reads the refusal.
    assert answer.startswith(b"HTTP/1.1 " + expected) or (expected == b"431" and answer == b"")
    assert len(upstream.requests) == (expected == b"200")


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"\r\n\r\n\r\n", b"HELLO WORLD\r\n\r\n",
     b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET  /  HTTP/1.1\r\n\r\n"],
)  # fmt: skip
async def test_garbage_gets_400_or_nothing(gateway: Gateway, garbage: bytes) -> None:
    """TLS on a plain port, HTTP/2, noise: the connection ends and the next one is served."""
    answer = await _answer_of(gateway, garbage, is_last=True)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:100]
    assert (await gateway.raw(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).startswith(
        b"HTTP/1.1 200 "
    )


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway, upstream: OpenAIServer) -> None:
    """Two requests in one packet get two answers, the first one first."""
    head = HEAD + b"content-length: %d\r\n" % len(CHAT)
    request = (
        head + b"x-request-id: one\r\n\r\n" + CHAT + head + b"x-request-id: two\r\nconnection: close\r\n\r\n" + CHAT
    )

    answer = await gateway.raw(request)

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.index(b"x-request-id: one") < answer.index(b"x-request-id: two")


async def test_body_in_single_bytes_is_one_body(gateway: Gateway, upstream: OpenAIServer) -> None:
    """However slowly it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    request = HEAD + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(CHAT) + CHAT
    for at in range(len(request)):
        writer.write(request[at : at + 1])
        await asyncio.sleep(0)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert upstream.requests[0].body == CHAT


async def test_client_that_leaves_in_the_middle_of_its_body_costs_nothing(
    gateway: Gateway, upstream: OpenAIServer
) -> None:
    """Half a body is never sent on; the request is counted as the client's own end."""
    request = HEAD + b"x-request-id: half-a-body\r\ncontent-length: 1000\r\n\r\n" + CHAT
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request)
    await writer.drain()
    writer.close()
    await writer.wait_closed()

    line = await gateway.wait_log(lambda line: line["request_id"] == "half-a-body")
    assert (line["status"], line["error"]) == (499, "client_gone")
    assert upstream.requests == []


async def test_underscore_twin_of_a_header_is_another_header(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """`x_api_key` is not `x-api-key`; no credentials come out of it."""
    answer = await client.post(
        "/v1/chat/completions", content=CHAT, headers={"authorization": "", "x_api_key": ENVIRON["DEV_KEY"]}
    )

    assert answer.status_code == 401
    assert json.loads(answer.content)["error"]["code"] == "invalid_api_key"


async def _answer_of(gateway: Gateway, request: bytes, *, is_last: bool = False) -> bytes:
    """Everything that comes back until the gateway closes, which may be before it has read everything.

    `is_last` tells it that no more is sent. Raises: TimeoutError where it does not close.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    answer = b""
    try:
        writer.write(request)
        if is_last:
            writer.write_eof()
        async with asyncio.timeout(5):
            while piece := await reader.read(65536):
                answer += piece
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return answer
