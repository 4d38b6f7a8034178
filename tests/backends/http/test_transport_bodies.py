"""Bodies over our own transport: read to their end, bounded, held back, and sent at the pace of the upstream."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from backends.errors import UpstreamCut, UpstreamGarbage
from backends.http.connection import READ_BYTES
from backends.http.http1_exchange import HIGH_WATER_BYTES
from backends.http.transport import Transport
from tests.support.clock import settle
from tests.support.servers.raw_server import OK, Peer, RawRequest, RawServer, always, fetch, generous


async def test_exchange_that_ends_with_the_connection_is_clean(transport: Transport) -> None:
    """Without length and chunks the end of the connection is the end of the answer."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send_split(b"HTTP/1.1 200 OK\r\n\r\n", b"to the ", b"end")

    async with RawServer(serve) as server:
        outcome = await fetch(transport.wire(server.base_url))

    assert outcome == (200, b"to the end")


async def test_exchange_that_ends_with_a_reset_is_cut(transport: Transport) -> None:
    """A reset is no orderly end, also where the end of the connection would have been."""
    is_read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await is_read.wait()
        peer.reset()

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        assert await exchange.read() == b"half"
        is_read.set()
        with pytest.raises(UpstreamCut):
            await exchange.read()
        with pytest.raises(UpstreamCut):
            await exchange.read()
        await exchange.aclose()


async def test_read_of_endless_trailers_raises_garbage(transport: Transport) -> None:
    """Trailers are tolerated but not without end."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-trailer: ")
        while True:
            peer.send(b"y" * 10_000)
            await peer.drain()

    async with RawServer(serve) as server:
        with pytest.raises(UpstreamGarbage, match="trailers"):
            await fetch(transport.wire(server.base_url))


async def test_read_hands_over_what_one_read_of_the_socket_brought_as_one_piece(transport: Transport) -> None:
    """A hundred chunks that arrive together are one piece."""
    chunks = b"3\r\nabc\r\n" * 100
    async with RawServer(always(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        piece = await exchange.read()
        await exchange.aclose()

    assert piece == b"abc" * 100


async def test_read_leaves_content_encoding_alone(transport: Transport) -> None:
    """Compressed bytes go on as they came."""
    packed = gzip.compress(b"hello")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with RawServer(always(head + packed)) as server:
        outcome = await fetch(transport.wire(server.base_url))

    assert outcome == (200, packed)


@pytest.mark.parametrize("framing", ["content-length: 2000", "transfer-encoding: chunked", "x: y"])
async def test_body_longer_than_allowed_raises_garbage_and_closes(transport: Transport, framing: str) -> None:
    """The bound holds however the answer is delimited."""
    chunk = b"7d0\r\n" if "chunked" in framing else b""
    answer = f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode() + chunk + b"x" * 2000
    async with RawServer(always(answer)) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        with pytest.raises(UpstreamGarbage, match="1999"):
            await exchange.body(1999)
        await exchange.aclose()


async def test_read_after_an_early_close_never_looks_like_a_clean_end(transport: Transport) -> None:
    """Closing drops what was not read; a reader who comes later is told so."""
    async with RawServer(always(OK)) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        await exchange.aclose()
        await exchange.aclose()
        with pytest.raises(UpstreamCut):
            await exchange.read()


async def test_slow_reader_holds_the_upstream_back(transport: Transport) -> None:
    """What is not read stays with the upstream, and all of it comes once it is read."""
    num_bytes = 64 * 1024 * 1024
    is_held_back = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % num_bytes)
        for _ in range(num_bytes // 65536):
            peer.send(bytes(65536))
            if peer.num_unsent:
                is_held_back.set()
                await peer.drain()

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        async with asyncio.timeout(5):
            await is_held_back.wait()
        await settle(1000)
        pieces = [await exchange.read()]
        while pieces[-1]:
            pieces.append(await exchange.read())
        await exchange.aclose()

    assert sum(map(len, pieces)) == num_bytes
    # One read of the socket may come on top of the mark.
    assert HIGH_WATER_BYTES < len(pieces[0]) <= HIGH_WATER_BYTES + READ_BYTES


@pytest.mark.parametrize("num_bytes", [1, 65536, 262_144, 262_145, 5_000_000])
async def test_send_of_any_body_arrives_whole_at_a_slow_server(transport: Transport, num_bytes: int) -> None:
    """Small and large bodies go out unharmed, and the connection is kept."""
    seen: list[RawRequest] = []
    body = bytes(range(256)) * (num_bytes // 256 + 1)
    async with RawServer(always(OK, seen)) as server:
        wire = transport.wire(server.base_url)
        for _ in range(2):
            await fetch(wire, body=body[:num_bytes])

    assert [request.body == body[:num_bytes] for request in seen] == [True, True]
    assert server.num_connections == 1


async def test_send_whose_answer_comes_before_the_body_is_out_returns_it_and_drops_the_connection(
    transport: Transport,
) -> None:
    """A refusal counts although the upstream did not read the request to its end; the rest is not sent."""
    is_gone = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await peer.wait_gone()
        is_gone.set()

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        # More than the sockets' buffers and the stream reader of the server take.
        outcome = await fetch(wire, body=bytes(100_000_000))

        assert outcome == (413, b"no")
        assert wire._pool.num_idle == 0
        async with asyncio.timeout(10):
            await is_gone.wait()
