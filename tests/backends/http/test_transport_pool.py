"""The pool of our own transport: reuse, order, retry on a stale connection, cancellation, and exact accounting."""

from __future__ import annotations

import asyncio
import random

import pytest

from backends.clock import SystemClock
from backends.errors import ConnectFailed, ConnectTimeout, UpstreamCut, UpstreamError
from backends.http.http1_exchange import HttpExchange
from backends.http.transport import HttpWire, Transport
from tests.support.clock import FakeClock, settle
from tests.support.servers.raw_server import OK, Peer, RawServer, always, fetch, generous

ENDS = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"


async def begin(wire: HttpWire) -> HttpExchange:
    """One request, answered but not closed."""
    return await wire.send("POST", b"/", [], b"", generous())


async def test_acquire_takes_the_most_recently_used_connection(transport: Transport) -> None:
    """Last in, first out: the others get old and expire."""
    numbers: list[int] = []

    async def serve(peer: Peer) -> None:
        while True:
            await peer.request()
            numbers.append(peer.number)
            peer.send(OK)

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        first, second = await begin(wire), await begin(wire)
        await second.body(10)
        await second.aclose()
        await first.body(10)
        await first.aclose()
        await fetch(wire)
        await fetch(wire)

    assert numbers == [0, 1, 0, 0]


async def test_idle_connections_expire(clock: FakeClock) -> None:
    """A connection that nobody needs is closed after its time, without any traffic."""
    transport = Transport(clock, idle_expiry_s=0.05)
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.wait_gone()
        gone.set_result(None)

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        assert wire._pool.num_idle == 1
        await clock.advance(0.06)
        async with asyncio.timeout(10):
            await gone

        assert wire._pool.num_open == 0
    await transport.aclose()


async def test_idle_connections_are_bounded() -> None:
    """More than `max_idle` are not kept."""
    transport = Transport(SystemClock(), max_idle=1)
    async with RawServer(always(OK)) as server:
        wire = transport.wire(server.base_url)
        exchanges = [await begin(wire) for _ in range(3)]
        for exchange in exchanges:
            await exchange.body(10)
            await exchange.aclose()
        await settle()

        assert (wire._pool.num_idle, wire._pool.num_open) == (1, 1)
    await transport.aclose()


async def test_waiters_are_served_in_order() -> None:
    """Whoever waits longest is next, and a newcomer does not overtake."""
    transport = Transport(SystemClock(), max_connections=2)
    served: list[int] = []

    async def one(wire: HttpWire, number: int) -> None:
        await fetch(wire)
        served.append(number)

    async with RawServer(always(OK)) as server:
        wire = transport.wire(server.base_url)
        holders = [await begin(wire) for _ in range(2)]
        tasks = [asyncio.ensure_future(one(wire, number)) for number in range(20)]
        await settle()
        await holders[0].body(10)
        await holders[0].aclose()
        await asyncio.gather(*tasks)
        await holders[1].aclose()
    await transport.aclose()

    assert served == list(range(20))
    assert server.num_connections == 2


async def test_place_of_a_closed_connection_goes_to_who_waits() -> None:
    """A connection that cannot be reused makes room for a new one."""
    transport = Transport(SystemClock(), max_connections=1)
    async with RawServer(always(ENDS)) as server:
        wire = transport.wire(server.base_url)
        holder = await begin(wire)
        waiting = asyncio.ensure_future(fetch(wire))
        await settle()
        await holder.aclose()

        assert await waiting == (200, b"hi")
        assert server.num_connections == 2
    await transport.aclose()


async def test_place_of_a_failed_attempt_goes_to_who_waits() -> None:
    """An attempt to connect that comes to nothing makes room for another."""
    transport = Transport(SystemClock(), max_connections=1)

    async def serve(peer: Peer) -> None:
        if peer.number == 0:
            await peer.wait_gone()

    async with RawServer(serve) as server:
        # Neither of them gets as far as a TLS handshake: the first one hangs, the second one is turned away.
        wire = transport.wire(f"https://127.0.0.1:{server.port}")
        hanging = asyncio.ensure_future(wire.send("POST", b"/", [], b"", generous(connect_s=0.05)))
        await settle()
        waiting = asyncio.ensure_future(begin(wire))

        with pytest.raises(ConnectTimeout):
            await hanging
        with pytest.raises(ConnectFailed):
            await waiting
        assert server.num_connections == 2
    await transport.aclose()


@pytest.mark.parametrize("answer", [OK, ENDS], ids=["connection", "place"])
async def test_cancelled_waiter_passes_its_grant_on(answer: bytes) -> None:
    """What was granted to a task that is cancelled before it runs is not lost."""
    transport = Transport(SystemClock(), max_connections=1)
    async with RawServer(always(answer)) as server:
        wire = transport.wire(server.base_url)
        holder = await begin(wire)
        first, second = (asyncio.ensure_future(fetch(wire)) for _ in range(2))
        await settle()
        await holder.aclose()
        async with asyncio.timeout(10):
            while len(wire._pool._waiters) == 2:
                await asyncio.sleep(0)
        first.cancel()

        assert await second == (200, b"hi")
        assert first.cancelled()
        assert wire.statistics().in_flight == 0
    await transport.aclose()


async def test_kept_connection_that_the_server_closed_is_not_used(transport: Transport) -> None:
    """An idle connection whose end has been noticed is out of the pool."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        await fetch(wire)
        async with asyncio.timeout(10):
            while wire._pool.num_open:
                await asyncio.sleep(0)
        assert wire._pool.num_idle == 0
        await fetch(wire)

    assert wire.statistics().connections_opened == 2
    assert wire.statistics().sent == 2


@pytest.mark.parametrize("stage", ["pool", "connect", "head", "read"])
async def test_cancelling_at_any_stage_closes_the_connection_and_leaks_nothing(stage: str) -> None:
    """Wherever a task is cancelled, the upstream learns at once and the place is free again."""
    transport = Transport(SystemClock(), max_connections=1)
    reached = asyncio.Event()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(peer: Peer) -> None:
        if stage != "connect":
            await peer.request()
            if stage == "read":
                peer.send(OK[:-1])
        reached.set()
        await peer.wait_gone()
        if not gone.done():
            gone.set_result(None)

    async def work(wire: HttpWire) -> None:
        exchange = await begin(wire)
        await exchange.read()
        await exchange.read()

    async with RawServer(serve) as server:
        wire = transport.wire(f"https://127.0.0.1:{server.port}" if stage == "connect" else server.base_url)
        holder = asyncio.ensure_future(work(wire))
        async with asyncio.timeout(10):
            await reached.wait()
        await settle()
        if stage == "pool":
            waiting = asyncio.ensure_future(work(wire))
            await settle()
            waiting.cancel()
            await asyncio.wait([waiting])
            assert wire.statistics().in_flight == 1
        holder.cancel()
        await asyncio.wait([holder])
        assert holder.cancelled()
        assert wire.statistics().in_flight == 0
        async with asyncio.timeout(10):
            await gone

        assert wire._pool.num_open == 0
    await transport.aclose()


async def test_aclose_breaks_off_everything_and_wakes_who_waits() -> None:
    """Exchanges in flight end as cut, waiters are turned away, and nothing can be sent afterwards."""
    transport = Transport(SystemClock(), max_connections=2)

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await peer.wait_gone()

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        idle, reading = await begin(wire), await begin(wire)
        read = asyncio.ensure_future(reading.read())
        waiting = asyncio.ensure_future(begin(wire))
        await settle()
        await transport.aclose()
        await transport.aclose()

        for broken in (read, idle.read()):
            with pytest.raises(UpstreamCut):
                await broken
        with pytest.raises(ConnectFailed):
            await waiting
        with pytest.raises(ConnectFailed):
            await begin(wire)
        assert wire._pool.num_open == 0
        await idle.aclose()
        await reading.aclose()
        assert wire.statistics().in_flight == 0


async def test_wires_do_not_share_places() -> None:
    """A backend that has used up its connections leaves those of another alone, also at the same origin."""
    transport = Transport(SystemClock(), max_connections=1)
    async with RawServer(always(OK)) as server:
        one, other = transport.wire(server.base_url), transport.wire(server.base_url)
        holder = await begin(one)
        assert await fetch(other) == (200, b"hi")
        await other.aclose()
        assert await holder.body(10) == b"hi"
        await holder.aclose()
    await transport.aclose()


@pytest.mark.parametrize("seed", range(6))
async def test_accounting_is_exact_under_random_load_and_cancellation(seed: int) -> None:
    """After any mix of success, refusal, cut and cancellation nothing is in flight and every place is free."""
    rng = random.Random(seed)
    transport = Transport(SystemClock(), max_connections=5, max_idle=3)
    most_open = 0

    async def serve(peer: Peer) -> None:
        while True:
            await peer.request()
            match rng.randrange(8):
                case 0:
                    return
                case 1:
                    peer.reset()
                case 2:
                    peer.send(OK[:-1])
                    return
                case 3:
                    await peer.send_split(OK[:20], OK[20:])
                case _:
                    peer.send(OK)

    async def work(wire: HttpWire) -> str:
        nonlocal most_open
        try:
            exchange = await wire.send("POST", b"/", [], bytes(rng.choice([0, 100, 300_000])), generous(connect_s=0.3))
            try:
                most_open = max(most_open, wire._pool.num_open)
                if rng.random() < 0.8:
                    await exchange.body(100)
            finally:
                await exchange.aclose()
        except UpstreamError:
            return "failed"
        return "done"

    async with RawServer(serve) as server:
        wire = transport.wire(server.base_url)
        tasks: list[asyncio.Task[str]] = []
        for _ in range(150):
            tasks.append(asyncio.ensure_future(work(wire)))
            if rng.random() < 0.4:
                rng.choice(tasks).cancel()
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
        async with asyncio.timeout(2):
            while wire._pool.num_open != wire._pool.num_idle:
                await asyncio.sleep(0)
        outcomes = {"cancelled" if task.cancelled() else task.result() for task in tasks}
        pool = wire._pool

        assert outcomes == {"cancelled", "failed", "done"}
        assert most_open <= 5
        assert wire.statistics().in_flight == 0
        assert (pool._num_connecting, len(pool._waiters), len(pool._active)) == (0, 0, 0)
        assert pool.num_idle <= 3
        # The pool still works.
        holders = []
        for _ in range(5):
            try:
                holders.append(await begin(wire))
            except UpstreamCut:
                continue
        for holder in holders:
            await holder.aclose()
    await transport.aclose()
    assert pool.num_open == 0
