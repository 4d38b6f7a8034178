"""When our own transport sends a request a second time, and above all when it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from backends.clock import SystemClock
from backends.errors import UpstreamCut
from backends.http.exchange import HttpExchange
from backends.http.transport import HttpWire, Transport
from tests.support.raw_server import OK, Peer, RawServer, always, fetch, generous


async def begin(wire: HttpWire) -> HttpExchange:
    """One request, answered but not closed."""
    return await wire.send("POST", b"/", [], b"", generous())


def stale(*, answers_first: bytes = b"", resets: bool = False) -> Callable[[Peer], Awaitable[None]]:
    """A server whose first connection ends in the middle of its second request."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.request()
        if peer.number == 0:
            peer.send(answers_first)
            await peer.drain()
            peer.reset() if resets else peer.close()
        else:
            peer.send(OK)

    return serve


@pytest.mark.parametrize("resets", [False, True])
async def test_stale_connection_is_retried_once_on_a_new_one(transport: Transport, resets: bool) -> None:
    """A kept connection that ends before any byte of an answer costs a second attempt, never on another kept one."""

    async with RawServer(stale(resets=resets)) as server:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        assert await fetch(wire) == (200, b"hi")
        statistics = wire.statistics()

    assert server.num_connections == 2
    assert (statistics.failed, statistics.in_flight) == (0, 0)


async def test_stale_connections_all_at_once_are_retried_on_new_ones() -> None:
    """With every place taken by a kept connection the retry replaces one of them."""
    transport = Transport(SystemClock(), max_connections=2)

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        if peer.number < 2:
            await peer.request()
        else:
            await always(OK)(peer)

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        exchanges = [await begin(wire) for _ in range(2)]
        for exchange in exchanges:
            await exchange.body(10)
            await exchange.aclose()
        assert await fetch(wire) == (200, b"hi")
        assert wire.statistics().sent == 4, "the retry went to another kept connection"
        assert wire._pool.num_open <= 2
    await transport.aclose()


async def test_cut_after_a_byte_of_the_answer_is_not_retried(transport: Transport) -> None:
    """Once the upstream has begun to answer, nothing is sent again."""
    async with RawServer(stale(answers_first=b"H")) as server:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        with pytest.raises(UpstreamCut):
            await fetch(wire)

    assert server.num_connections == 1


async def test_cut_on_a_new_connection_is_not_retried(transport: Transport) -> None:
    """Only a kept connection can be stale."""

    async def serve(peer: Peer) -> None:
        await peer.request()

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        with pytest.raises(UpstreamCut):
            await fetch(wire)

    assert server.num_connections == 1
    assert wire.statistics().failed == 1
