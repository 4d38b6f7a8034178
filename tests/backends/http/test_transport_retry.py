"""When our own transport sends a request a second time, and above all when it does not."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable

import pytest

from backends.clock import SystemClock
from backends.errors import UpstreamCut
from backends.http.http1_exchange import HttpExchange
from backends.http.transport import HttpWire, Transport
from tests.support.clock import FakeClock
from tests.support.servers.raw_server import OK, Peer, RawServer, always, fetch, generous


class ClosingServer:
    """A server in a thread of its own, which closes its first `num_stale` connections when it is told to.

    In a thread, so that it closes while the client's event loop is kept from noticing.
    """

    def __init__(self, num_stale: int = 1, *, resets: bool = False) -> None:
        self.num_requests = 0
        self._num_stale = num_stale
        self._resets = resets
        self._close = threading.Event()
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def base_url(self) -> str:
        """The origin."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close_idle(self) -> None:
        """Close them, and return when that is done."""
        self._close.set()
        assert self._is_closed.wait(5)

    def stop(self) -> None:
        """End."""
        self._close.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        stale: list[socket.socket] = []
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._answer(peer)
            if len(stale) < self._num_stale:
                stale.append(peer)
                if len(stale) == self._num_stale:
                    self._close.wait(5)
                    for each in stale:
                        if self._resets:
                            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        each.close()
                    self._is_closed.set()
            else:
                self._threads.append(threading.Thread(target=self._serve, args=(peer,)))
                self._threads[-1].start()

    def _answer(self, peer: socket.socket) -> bool:
        if not peer.recv(65536):
            return False
        self.num_requests += 1
        peer.sendall(OK)
        return True

    def _serve(self, peer: socket.socket) -> None:
        while self._answer(peer):
            pass
        peer.close()


async def begin(wire: HttpWire) -> HttpExchange:
    """One request, answered but not closed."""
    return await wire.send("POST", b"/", [], b"", generous())


def reads_then_closes(
    *, answers_first: bytes = b"", resets: bool = False, silence_s: float = 0.0
) -> Callable[[Peer], Awaitable[None]]:
    """A server whose first connection ends after it has read its second request."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.request()
        if peer.number == 0:
            peer.send(answers_first)
            await peer.drain()
            await asyncio.sleep(silence_s)
            peer.reset() if resets else peer.close()
        else:
            peer.send(OK)

    return serve


@pytest.mark.parametrize("resets", [False, True])
async def test_connection_closed_before_the_request_arrived_is_retried_once(transport: Transport, resets: bool) -> None:
    """The close of a kept connection crosses the request on its way: nobody has read it, so it is sent again."""
    server = ClosingServer(resets=resets)
    try:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        # Closes while this loop is not looking, so the request goes out on the closed connection.
        server.close_idle()
        assert await fetch(wire) == (200, b"hi")
        statistics = wire.statistics()
        await transport.aclose()
    finally:
        server.stop()

    assert server.num_requests == 2
    assert (statistics.sent, statistics.failed, statistics.in_flight) == (3, 0, 0)


async def test_stale_connections_all_at_once_are_retried_on_new_ones() -> None:
    """With every place taken by a kept connection the retry replaces one of them."""
    transport = Transport(SystemClock(), max_connections=2)
    server = ClosingServer(num_stale=2)
    try:
        wire = transport.wire(server.base_url)
        exchanges = [await begin(wire) for _ in range(2)]
        for exchange in exchanges:
            await exchange.body(10)
            await exchange.aclose()
        server.close_idle()
        assert await fetch(wire) == (200, b"hi")
        assert wire.statistics().sent == 4, "the retry went to another kept connection"
        assert wire._pool.num_open <= 2
        await transport.aclose()
    finally:
        server.stop()


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("silence_s", [0.0, 0.3])
async def test_request_that_was_read_is_not_sent_again(transport: Transport, resets: bool, silence_s: float) -> None:
    """A model may be at work on it, or have been: whoever asks again decides that, and not the transport."""
    async with RawServer(reads_then_closes(resets=resets, silence_s=silence_s)) as server:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        with pytest.raises(UpstreamCut):
            await fetch(wire)

    assert server.num_connections == 1
    assert wire.statistics().failed == 1


async def test_cut_after_a_byte_of_the_answer_is_not_retried(transport: Transport) -> None:
    """Once the upstream has begun to answer, nothing is sent again."""
    async with RawServer(reads_then_closes(answers_first=b"H")) as server:
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


@pytest.mark.parametrize(("idle_s", "num_connections"), [(3.9, 1), (4.1, 2)])
async def test_idle_connection_is_used_while_servers_keep_theirs(idle_s: float, num_connections: int) -> None:
    """uvicorn closes after 5 s: a call that comes then must not meet the close on its way."""
    clock = FakeClock()
    transport = Transport(clock)
    async with RawServer(always(OK)) as server:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        await clock.advance(idle_s)
        await fetch(wire)
        await transport.aclose()

    assert server.num_connections == num_connections
