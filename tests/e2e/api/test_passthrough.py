"""Paths that the gateway does not know: whatever they carry goes through, as long as the backend is HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import os

import httpx
import pytest

from tests.e2e.conftest import ENVIRON
from tests.support.errors import openai_error
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer
from tests.support.servers.raw_server import Peer, RawServer

KEY = {"authorization": f"Bearer {ENVIRON['DEV_KEY']}"}


async def test_multipart_upload_goes_through_as_it_was(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """The boundary, the parts and every byte of the sound."""
    sound = os.urandom(300_000)
    upstream.next(Behaviour(body=b"WEBVTT\n", content_type="text/vtt; charset=utf-8"))

    answer = await client.post(
        "/v1/audio/transcriptions", data={"model": "whisper-1"}, files={"file": ("a.wav", sound, "audio/wav")}
    )

    received = upstream.requests[0]
    assert (answer.content, answer.headers["content-type"]) == (b"WEBVTT\n", "text/vtt; charset=utf-8")
    assert received.header("content-type") == answer.request.headers["content-type"]
    assert received.header("content-length") == answer.request.headers["content-length"]
    assert sound in received.body


async def test_chunked_upload_is_taken(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A body without a length arrives with one."""
    pieces = [os.urandom(70_000) for _ in range(5)]

    async def body() -> object:
        for piece in pieces:
            yield piece

    answer = await client.post("/v1/files", content=body(), headers={"content-type": "application/octet-stream"})  # type: ignore[arg-type]  # an async generator

    assert answer.content == b"".join(pieces)
    assert upstream.requests[0].header("content-length") == "350000"


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PUT", "PATCH"])
async def test_every_method_goes_through(client: httpx.AsyncClient, upstream: OpenAIServer, method: str) -> None:
    """Method, path and query are the client's; the key is the gateway's."""
    answer = await client.request(method, "/v1/files/file-1/content?x=1")

    received = upstream.requests[0]
    assert answer.status_code == 200
    assert (received.method, received.target) == (method, "/v1/files/file-1/content?x=1")
    assert received.header("authorization") == f"Bearer {ENVIRON['UPSTREAM_KEY']}"


async def test_no_content_has_no_content(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """204 comes without a body or a length, and the connection lives on."""
    upstream.next(Behaviour(raw=b"HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n"))

    gone = await client.delete("/v1/files/file-1")
    again = await client.get("/v1/files")

    assert (gone.status_code, gone.content, gone.headers["x-a"]) == (204, b"", "b")
    assert again.status_code == 200


@pytest.mark.parametrize("condition", ["if-none-match", "if-modified-since"])
async def test_what_has_not_changed_is_not_sent_again(
    client: httpx.AsyncClient, upstream: OpenAIServer, condition: str
) -> None:
    """304 for who has asked so, with its tag and without a length; for others it is no answer."""
    unchanged = Behaviour(raw=b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\ncontent-length: 1000\r\n\r\n')
    upstream.next(*[unchanged] * 12)
    answers = [await client.get("/v1/files/f/content", headers={condition: '"a"'}) for _ in range(11)]
    unasked = await client.get("/v1/files/f/content")

    assert {answer.status_code for answer in answers} == {304}
    assert answers[0].headers["etag"] == '"a"'
    assert "content-length" not in answers[0].headers
    openai_error(unasked, 502)


async def test_head_of_a_stream_is_its_head(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A stored response can be had as events; its head has none."""
    upstream.next(Behaviour(raw=b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-a: b\r\n\r\n"))
    answer = await client.head("/v1/responses/resp_1?stream=true")

    assert (answer.status_code, answer.content) == (200, b"")
    assert (answer.headers["content-type"], answer.headers["x-a"]) == ("text/event-stream", "b")


async def test_answer_of_an_unlisted_path_streams(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Events of /v1/messages arrive as they come, not at the end."""
    upstream.next(Behaviour(events=(b"event: a\ndata: {}\n\n", b"event: b\ndata: {}\n\n"), stall_after_events=1))
    async with client.stream("POST", "/v1/messages", json={"model": "plain", "stream": True}) as answer:
        first = await anext(answer.aiter_raw())

    assert first == b"event: a\ndata: {}\n\n"
    await upstream.wait_disconnected()


async def test_accept_encoding_travels_where_bytes_are_not_read(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """A download may be compressed: client and upstream agree on it."""
    upstream.next(Behaviour(body=b"x" * 1000, gzip=True, content_type="application/jsonl"))

    answer = await client.get("/v1/files/f/content", headers={"accept-encoding": "gzip"})

    assert upstream.requests[0].header("accept-encoding") == "gzip"
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.content == b"x" * 1000


async def test_large_binary_answer_is_streamed_with_back_pressure() -> None:
    """64 MiB to a reader that takes its time: every byte right, and neither memory nor buffers grow with it."""
    piece = bytes(range(256)) * 256
    num_pieces = 1024
    sent = 0

    async def download(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        peer.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: %d\r\n\r\n" % (len(piece) * num_pieces)
        )
        for _ in range(num_pieces):
            peer.send(piece)
            await peer.drain()
            sent += 1

    async with RawServer(download) as server:
        policy = f"""
version: 1
backends: {{up: {{type: openai, base_url: "{server.base_url}/v1"}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""
        async with start_gateway(policy) as gateway:
            before_mib = gateway.rss_mib()
            async with (
                httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
                client.stream("GET", "/v1/files/f/content") as answer,
            ):
                pieces = answer.aiter_raw()
                digest = hashlib.sha256(await anext(pieces))
                await _settled(lambda: sent)
                sent_while_nobody_reads = sent
                async for data in pieces:
                    digest.update(data)
            grown_mib = gateway.rss_mib() - before_mib

    assert digest.digest() == hashlib.sha256(piece * num_pieces).digest()
    assert sent_while_nobody_reads < num_pieces * 0.5
    assert grown_mib < 16


async def _settled(number: object) -> None:
    """Wait until what `number()` counts stands still."""
    assert callable(number)
    last = -1
    while (now := number()) != last:
        last = now
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin",
        "/v1/files/../../admin",
        "/v1/files/%2e%2e/%2e%2e/admin",
        "/v1/files/%2E%2E%2Fadmin",
        "/v1/files/..%2fadmin",
        "/v1/files/..\\admin",
        "/v1/files/%5c..%5cadmin",
        "/v1//evil.example/x",
        "/v1/files//x",
        "/v1/files/%252e%252e/x",
        "/files/../admin",
        "http://evil.example/v1/files",
        "/v1/files/..;/admin",
        "/v1/./files",
    ],
)
async def test_path_that_climbs_is_refused(gateway: Gateway, upstream: OpenAIServer, path: str) -> None:
    """Whatever its spelling, a path never leaves the upstream's API root."""
    headers = f"host: x\r\nauthorization: {KEY['authorization']}\r\nconnection: close\r\n"
    answer = await gateway.raw(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())

    for received in upstream.requests:
        # What may go through is not a way up for any server: text without dot segments.
        assert received.target.startswith("/v1/")
        assert not {"..", "."} & set(received.target.replace("%2e", ".").replace("%2E", ".").split("/"))
    if not upstream.requests:
        assert answer.split(b" ")[1] in (b"400", b"404")


async def test_scripted_backend_has_no_other_paths(gateway: Gateway) -> None:
    """Where no HTTP backend stands behind a route, an unknown path is 404 in OpenAI's shape."""
    policy = """
version: 1
backends: {own: {type: scripted}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: own}]}]
"""
    async with start_gateway(policy) as alone:
        async with httpx.AsyncClient(base_url=alone.url, verify=False) as client:
            for method, path in (("GET", "/v1/files"), ("POST", "/v1/moderations"), ("POST", "/rerank")):
                answer = await client.request(method, path, json={"model": "m"} if method == "POST" else None)

                assert openai_error(answer, 404)["code"] == "unknown_url"


async def test_model_in_a_json_body_chooses_the_route(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Also on unlisted paths, the rename included."""
    await client.post("/v1/moderations", content=b'{"input": "x",  "model":"alias"}')
    await client.post(
        "/v1/moderations", content=b'{"input": "x",  "model":"alias"}', headers={"content-type": "application/json"}
    )

    assert upstream.requests[0].body == b'{"input": "x",  "model":"alias"}'
    assert upstream.requests[1].body == b'{"input": "x",  "model":"real/model \\"x\\""}'


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_error_of_an_unlisted_path_comes_back(
    client: httpx.AsyncClient, upstream: OpenAIServer, status: int
) -> None:
    """In OpenAI's shape, its words kept."""
    upstream.next(Behaviour(status=status, body=b'{"detail":"no such file"}'))

    answer = await client.get("/v1/files/f-1")

    assert openai_error(answer, status)["message"] == "no such file"
