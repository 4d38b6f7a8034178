"""The time limits of our own transport: which error, and how soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from backends.clock import SystemClock
from backends.errors import (
    ConnectFailed,
    ConnectTimeout,
    FirstTokenTimeout,
    PoolTimeout,
    SlipstreamError,
    StreamStalled,
    TotalTimeout,
)
from backends.http.pool import TICK_S, OriginPool, Sweeper
from backends.http.transport import HttpWire, Transport
from backends.http.wire import TimeLimits
from tests.support.clock import FakeClock
from tests.support.servers.raw_server import Peer, RawServer, generous

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"
# What a limit may be late by: a tick and a loop that is busy.
LATE_S = 0.5


def sends(data: bytes) -> Callable[[Peer], Awaitable[None]]:
    """A server that answers with these bytes and falls silent."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(data)
        await peer.wait_gone()

    return serve


async def fetch(wire: HttpWire, limits: TimeLimits) -> bytes:
    """One whole exchange."""
    exchange = await wire.send("POST", b"/", [], b"", limits)
    try:
        return await exchange.body(100)
    finally:
        await exchange.aclose()


async def elapse(clock: FakeClock, seconds: float) -> None:
    """Let fake time pass and the sweeper see it."""
    await clock.advance(seconds)
    await asyncio.sleep(TICK_S * 1.5)


@pytest.mark.parametrize(
    ("sent", "limit", "error"),
    [
        (b"", "first_byte_s", FirstTokenTimeout),
        (b"HTTP/1.1 200 OK\r\n", "first_byte_s", FirstTokenTimeout),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "first_byte_s", FirstTokenTimeout),
        (HEAD, "idle_s", StreamStalled),
        (HEAD + b"abc", "idle_s", StreamStalled),
        (b"", "deadline", TotalTimeout),
        (HEAD, "deadline", TotalTimeout),
        (HEAD + b"abc", "deadline", TotalTimeout),
    ],
)
@pytest.mark.timed
async def test_exchange_with_a_silent_upstream_ends_in_time(
    transport: Transport, sent: bytes, limit: str, error: type[SlipstreamError]
) -> None:
    """Each silence has its own error, which comes within a tick of its limit, and the connection is closed."""
    async with RawServer(sends(sent)) as server:
        wire = transport.wire(server.base_url)
        await wire.open()
        started = time.monotonic()
        limits = generous(**{limit: started + 0.02 if limit == "deadline" else 0.02})
        with pytest.raises(error) as raised:
            await fetch(wire, limits)
        lasted_s = time.monotonic() - started

    assert type(raised.value) is error
    assert 0.02 <= lasted_s < 0.02 + LATE_S
    assert wire.statistics().failed == 1


async def test_idle_limit_of_the_exchange_can_be_changed(transport: Transport) -> None:
    """The one who reads decides how long a silence may last from now on."""
    async with RawServer(sends(HEAD)) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        exchange.idle_s = 0.01
        with pytest.raises(StreamStalled, match=r"0\.01 s"):
            await exchange.read()
        await exchange.aclose()


async def test_slow_reader_is_not_taken_for_a_silent_upstream(clock: FakeClock) -> None:
    """Silence counts only while somebody waits for the upstream."""
    transport = Transport(clock)
    may_go_on = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(HEAD + b"abc")
        await may_go_on.wait()
        peer.send(b"defghij")

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous())
        assert await exchange.read() == b"abc"
        await elapse(clock, 100)
        may_go_on.set()
        rest = await exchange.body(100)
        await exchange.aclose()
    await transport.aclose()

    assert rest == b"defghij"


async def test_total_limit_ends_an_exchange_that_nobody_reads(clock: FakeClock) -> None:
    """The call's time is up whoever is slow; what has already arrived is still handed over."""
    transport = Transport(clock)
    async with RawServer(sends(HEAD + b"abc")) as server:
        wire = transport.wire(server.base_url)
        exchange = await wire.send("POST", b"/", [], b"", generous(deadline=clock.now() + 60))
        await elapse(clock, 61)
        assert await exchange.read() == b"abc"
        with pytest.raises(TotalTimeout):
            await exchange.read()
        await exchange.aclose()
    await transport.aclose()


async def test_steady_trickle_never_stalls(clock: FakeClock) -> None:
    """Every piece starts the silence anew."""
    transport = Transport(clock)
    next_piece = asyncio.Semaphore(0)

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(HEAD)
        for _ in range(10):
            await next_piece.acquire()
            peer.send(b"x")

    async with RawServer(serve) as server:
        exchange = await transport.wire(server.base_url).send("POST", b"/", [], b"", generous(idle_s=5.0))
        for _ in range(3):
            read = asyncio.ensure_future(exchange.read())
            await elapse(clock, 4)
            next_piece.release()
            assert await read == b"x"
        await exchange.aclose()
    await transport.aclose()


async def test_upload_that_is_not_taken_ends_in_time(clock: FakeClock) -> None:
    """A write that makes no progress falls under the first-byte limit."""
    transport = Transport(clock)

    async def serve(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await asyncio.get_running_loop().create_future()

    async with RawServer(serve) as server:
        sending = asyncio.ensure_future(
            transport.wire(server.base_url).send("POST", b"/", [], bytes(100_000_000), generous())
        )
        async with asyncio.timeout(5):
            # Until the socket's buffers are full there is progress, and the limit begins anew.
            while not sending.done():
                await elapse(clock, 6)
        with pytest.raises(FirstTokenTimeout, match="stopped taking the request"):
            await sending
    await transport.aclose()


async def test_send_after_the_deadline_sends_nothing(transport: Transport) -> None:
    """A call whose time is up is not begun, with a connection at hand or without."""
    async with RawServer(sends(HEAD + bytes(10))) as server:
        wire = transport.wire(server.base_url)
        with pytest.raises(TotalTimeout):
            await fetch(wire, generous(deadline=time.monotonic()))
        assert server.num_connections == 0
        await fetch(wire, generous())
        with pytest.raises(TotalTimeout):
            await fetch(wire, generous(deadline=time.monotonic()))
        assert wire.statistics().sent == 1


async def test_connecting_to_one_that_does_not_shake_hands_times_out(caplog: pytest.LogCaptureFixture) -> None:
    """Opening includes the TLS handshake, and the log names the address."""

    async def serve(peer: Peer) -> None:
        await peer.wait_gone()

    transport = Transport(SystemClock())
    async with RawServer(serve) as server:
        wire = transport.wire(f"https://127.0.0.1:{server.port}")
        with pytest.raises(ConnectTimeout) as caught:
            await wire.send("GET", b"/", [], b"", generous(connect_s=0.05))
        assert "127.0.0.1" not in caught.value.message
        assert f"127.0.0.1:{server.port}" in caplog.text
        with pytest.raises(TotalTimeout):
            await wire.send("GET", b"/", [], b"", generous(deadline=time.monotonic() + 0.05))
        assert wire._pool.num_open == 0
    await transport.aclose()


async def test_connecting_to_a_closed_port_fails(transport: Transport, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal names the upstream; the log names the address and the reason, once."""
    async with RawServer(sends(b"")) as server:
        base_url = server.base_url
    wire = transport.wire(base_url, "near")
    for _ in range(2):
        with pytest.raises(ConnectFailed, match=r'^cannot connect to the upstream "near"; nothing was sent$'):
            await wire.send("GET", b"/", [], b"", generous())
    assert caplog.text.count(f'cannot connect to the upstream "near" at 127.0.0.1:{server.port}') == 1

    assert wire._pool.num_open == 0


@pytest.mark.timed
async def test_waiting_for_a_connection_times_out() -> None:
    """Where all connections stay busy, the one who waits is told that nothing was sent."""
    transport = Transport(SystemClock(), max_connections=1)
    async with RawServer(sends(HEAD)) as server:
        wire = transport.wire(server.base_url)
        holder = await wire.send("POST", b"/", [], b"", generous())
        started = time.monotonic()
        with pytest.raises(PoolTimeout):
            await wire.send("POST", b"/", [], b"", generous(connect_s=0.02))
        lasted_s = time.monotonic() - started
        with pytest.raises(TotalTimeout):
            await wire.send("POST", b"/", [], b"", generous(deadline=time.monotonic() + 0.02))
        statistics = wire.statistics()
        await holder.aclose()
    await transport.aclose()

    assert 0.02 <= lasted_s < 0.02 + LATE_S
    assert statistics.in_flight == 1


async def test_sweeper_rests_when_nothing_can_expire(transport: Transport) -> None:
    """An unused transport has no timer."""
    async with RawServer(sends(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")) as server:
        wire = transport.wire(server.base_url)
        exchange = await wire.send("POST", b"/", [], b"", generous())
        assert transport._sweeper._timer is not None
        await exchange.aclose()
        await asyncio.sleep(TICK_S * 1.5)

        assert transport._sweeper._timer is None


class _Sickly:
    """A pool for the sweeper, whose every sweep raises where it has an `error`."""

    is_busy = True
    num_idle = 0

    def __init__(self, error: Exception | None = None) -> None:
        self.num_sweeps = 0
        self._error = error

    def sweep(self, now: float) -> None:
        """Count it."""
        self.num_sweeps += 1
        if self._error is not None:
            raise self._error


async def test_sweep_that_raises_ends_neither_the_other_pools_nor_the_next_tick() -> None:
    """Every time limit hangs on the timer, so it goes on; the error goes to the event loop's handler."""
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context.get("exception")))
    error = ValueError("a limit that cannot be compared")
    pools = [_Sickly(), _Sickly(error), _Sickly()]
    sweeper = Sweeper(FakeClock())
    sweeper.pools.update(cast("list[OriginPool]", pools))
    sweeper.wake()
    async with asyncio.timeout(5):
        while min(pool.num_sweeps for pool in pools) < 2:
            await asyncio.sleep(TICK_S)
    for pool in cast("list[OriginPool]", pools):
        sweeper.remove(pool)

    assert set(raised) == {error}
