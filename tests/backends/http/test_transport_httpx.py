"""Our own transport as httpx sees it: under `AsyncClient`, with httpx's bodies, timeouts and errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from backends.http.origin import parse_origin
from backends.http.transport import Transport
from tests.support.servers.raw_server import Peer, RawRequest, RawServer


class _Echo:
    """Sends every body back and remembers the requests."""

    def __init__(self) -> None:
        self.seen: list[RawRequest] = []

    async def __call__(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            self.seen.append(request)
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(request.body), request.body))


async def _async_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _sync_pieces(*pieces: bytes) -> Iterator[bytes]:
    yield from pieces


class _SyncStream(httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        return _sync_pieces(b"ab", b"", b"cd")


@pytest.mark.parametrize("kind", ["bytes", "async", "sync"])
async def test_client_sends_bodies_of_every_kind(transport: Transport, kind: str) -> None:
    """Bytes go with their length, streams in chunks."""
    echo = _Echo()
    async with RawServer(echo) as server, httpx.AsyncClient(transport=transport) as client:
        if kind == "sync":
            request = client.build_request("POST", server.base_url, headers={"transfer-encoding": "chunked"})
            request.stream = _SyncStream()
        else:
            content = b"abcd" if kind == "bytes" else _async_pieces(b"ab", b"", b"cd")
            request = client.build_request("POST", server.base_url + "/p?q=%20", content=content)
        response = await transport.handle_async_request(request)
        body = await response.aread()
        await response.aclose()

        assert (response.status_code, body, response.http_version) == (200, b"abcd", "HTTP/1.1")
        assert bool(echo.seen[0].field(b"transfer-encoding")) is (kind != "bytes")
        assert echo.seen[0].field(b"host") == [b"127.0.0.1:%d" % server.port]


async def test_client_uses_the_connection_again(transport: Transport) -> None:
    """Requests one after the other share a connection, whatever their body."""
    async with RawServer(_Echo()) as server, httpx.AsyncClient(transport=transport) as client:
        for content in (b"a", b"", b"b"):
            assert (await client.post(server.base_url, content=content)).content == content

        assert server.num_connections == 1
        assert transport.statistics().connections_reused == 2


async def test_stream_that_is_dropped_early_stops_and_drops_the_connection(transport: Transport) -> None:
    """After half a request the connection cannot carry another one."""
    is_dropped = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await peer.wait_gone()
        is_dropped.set()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield b"x"

    async with RawServer(serve) as server, httpx.AsyncClient(transport=transport) as client:
        assert (await client.post(server.base_url, content=endless())).status_code == 413
        async with asyncio.timeout(1):
            await is_dropped.wait()


async def test_request_without_host_gets_one(transport: Transport) -> None:
    """A request that was put together by hand is completed."""
    echo = _Echo()
    async with RawServer(echo) as server:
        request = httpx.Request("GET", server.base_url, stream=httpx.ByteStream(b""))
        response = await transport.handle_async_request(request)
        await response.aclose()

        assert echo.seen[0].field(b"host") == [b"127.0.0.1:%d" % server.port]


@pytest.mark.parametrize("length", ["3", "5"])
async def test_stream_of_another_length_than_announced_is_a_local_error(transport: Transport, length: str) -> None:
    """A body that does not keep its promise is not passed on as if it had."""
    async with RawServer(_Echo()) as server, httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.post(server.base_url, content=_async_pieces(b"ab", b"cd"), headers={"content-length": length})


async def test_request_with_a_line_break_in_a_header_is_a_local_error(transport: Transport) -> None:
    """Nothing that adds a line to the head is sent."""
    async with RawServer(_Echo()) as server, httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.get(server.base_url, headers={"a": "b\r\nc: d"})

        assert server.num_connections == 0


async def test_other_schemes_are_unsupported(transport: Transport) -> None:
    """Only http and https are spoken."""
    with pytest.raises(httpx.UnsupportedProtocol):
        await transport.handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))


async def _answer_nothing(peer: Peer) -> None:
    await peer.wait_gone()


async def _answer_half(peer: Peer) -> None:
    await peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
    await peer.wait_gone()


async def _take_no_body(peer: Peer) -> None:
    await peer.reader.readuntil(b"\r\n\r\n")
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("serve", [_answer_nothing, _answer_half])
async def test_read_timeout_is_honoured(transport: Transport, serve: object) -> None:
    """For the head and for every piece of the body."""
    async with RawServer(serve) as server:  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(None, read=0.02)) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(server.base_url)


async def test_write_timeout_is_honoured(transport: Transport) -> None:
    """A stream that the server does not take ends in httpx's write timeout."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1_000_000)

    async with RawServer(_take_no_body, limit=1 << 16) as server:
        async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(None, write=0.05)) as client:
            with pytest.raises(httpx.WriteTimeout):
                await client.post(server.base_url, content=endless())


async def test_connect_timeout_is_honoured(transport: Transport) -> None:
    """Opening includes the TLS handshake."""
    async with RawServer(_answer_nothing) as server:
        async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(None, connect=0.05)) as client:
            with pytest.raises(httpx.ConnectTimeout):
                await client.get(f"https://127.0.0.1:{server.port}")


async def test_pool_timeout_is_honoured() -> None:
    """Waiting for a connection has its own limit."""
    async with (
        RawServer(_answer_half) as server,
        httpx.AsyncClient(
            transport=Transport(SystemClock(), max_connections=1), timeout=httpx.Timeout(5, pool=0.02)
        ) as client,
        client.stream("GET", server.base_url),
    ):
        with pytest.raises(httpx.PoolTimeout):
            await client.get(server.base_url)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"garbage\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", httpx.RemoteProtocolError),
        (b"RESET", httpx.ReadError),
    ],
    ids=["nothing", "garbage", "cut", "reset"],
)
async def test_broken_answer_is_httpx_error(
    transport: Transport, answer: bytes, error: type[httpx.TransportError]
) -> None:
    """Callers that know only httpx see only httpx's errors."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        if answer == b"RESET":
            peer.reset()
        else:
            peer.send(answer)

    async with RawServer(serve) as server, httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(error):
            await client.get(server.base_url)


async def test_refused_connection_is_a_connect_error(transport: Transport) -> None:
    """Nobody listens there."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{unused.getsockname()[1]}")


async def test_closed_transport_refuses(transport: Transport) -> None:
    """After `aclose` nothing is opened, for a new origin or a known one."""
    async with RawServer(_Echo()) as server:
        request = httpx.Request("GET", server.base_url)
        await (await transport.handle_async_request(request)).aclose()
        await transport.aclose()
        for url in (server.base_url, "http://127.0.0.2:1"):
            with pytest.raises(httpx.ConnectError):
                await transport.handle_async_request(httpx.Request("GET", url))


@pytest.mark.parametrize(
    ("url", "host_header"),
    [
        ("http://example.com", b"example.com"),
        ("http://example.com:80/v1", b"example.com"),
        ("https://example.com:443/", b"example.com"),
        ("https://EXAMPLE.com:80", b"example.com:80"),
        ("http://[::1]:8000/v1", b"[::1]:8000"),
        ("http://bücher.example", b"xn--bcher-kva.example"),
    ],
)
def test_origin_of_a_base_url_gives_the_host_field(url: str, host_header: bytes) -> None:
    """The default port is left out, IPv6 keeps its brackets, names are in their ASCII form."""
    assert parse_origin(url).host_header == host_header


@pytest.mark.parametrize(
    "url",
    ["a.test", "ftp://a.test", "http://", "http://user:sesame@a.test", "http://a.test:99999", "http://" + "a" * 64],
)
def test_base_url_that_cannot_be_used_is_refused_without_its_secret(url: str) -> None:
    """A mistake is found at start, and credentials are not repeated."""
    with pytest.raises(ConfigurationError) as raised:
        parse_origin(url)

    assert "sesame" not in raised.value.message
