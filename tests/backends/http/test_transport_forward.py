"""Forwarding: pieces go on from where the socket is read, in order and none lost; it can pause, fail, be cancelled."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import UpstreamCut, UpstreamGarbage
from backends.http.transport import Transport
from tests.support.servers.raw_server import Peer, RawServer, generous

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Collector:
    """Keeps the pieces; asks for a pause after each of which `pauses` says so."""

    def __init__(self, *, pauses: bool = False) -> None:
        self.pieces: list[bytes] = []
        self.arrived = asyncio.Event()
        self._pauses = pauses

    def __call__(self, piece: bytes) -> bool:
        """Take a piece."""
        self.pieces.append(piece)
        self.arrived.set()
        return not self._pauses


async def test_forward_of_a_whole_answer_hands_on_every_byte_in_order(transport: Transport) -> None:
    """However reads cut the body; the connection can be used again."""
    parts = [b"%d," % number for number in range(300)]

    async def serve(peer: Peer) -> None:
        while await peer.request():
            peer.send(_HEAD + chunk(b"first,"))
            for part in parts:
                await peer.send_split(chunk(part))
            peer.send(b"0\r\n\r\n")

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        for _ in range(2):
            exchange = await wire.send("POST", b"/", [], b"", generous())
            collector = Collector()
            assert await exchange.forward(collector) is False
            await exchange.aclose()

            assert b"".join(collector.pieces) == b"first," + b"".join(parts)
        assert server.num_connections == 1


async def test_forward_that_is_paused_goes_on_where_it_stopped(transport: Transport) -> None:
    """Every pause returns at once, and nothing is lost or repeated over them."""
    body = bytes(range(256)) * 4096

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        peer.send(body)

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        collector = Collector(pauses=True)
        num_pauses = 0
        while await exchange.forward(collector):
            num_pauses += 1
            await asyncio.sleep(0)
        await exchange.aclose()

    assert b"".join(collector.pieces) == body
    assert num_pauses == len(collector.pieces) > 1


@pytest.mark.parametrize(("rest", "error"), [(b"", UpstreamCut), (b"no chunk size\r\n", UpstreamGarbage)])
async def test_forward_of_a_broken_answer_hands_on_what_came_and_raises(
    transport: Transport, rest: bytes, error: type[Exception]
) -> None:
    """Bytes that came in one read with the fault are handed on before it."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send_split(_HEAD, chunk(b"one"), chunk(b"two") + rest)

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        collector = Collector()
        with pytest.raises(error):
            await exchange.forward(collector)
        await exchange.aclose()

    assert b"".join(collector.pieces) == b"onetwo"


async def test_forward_cancelled_closes_the_connection_at_once(transport: Transport) -> None:
    """Whoever waits for a stream and leaves takes the upstream's work with it."""
    is_gone = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(_HEAD + chunk(b"one"))
        await peer.wait_gone()
        is_gone.set()

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        collector = Collector()
        task = asyncio.create_task(exchange.forward(collector))
        await collector.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await is_gone.wait()
