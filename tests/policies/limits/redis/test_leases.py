"""What a process held that has died is spent and free again; one that was only away for long gets it back."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from policies.limits.counters import Full, Hold, SpentBefore
from policies.limits.redis.packing import pack_holds, pack_spent, pack_used, pack_wants
from tests.support.policy.limits import PATIENT_S, counting, dollars, hold, pico, scripted, slot, tokens, until
from tests.support.servers.redis_server import RedisServer

LEASE_S = 0.6
_HOLDER = f"""
import asyncio, sys
from tests.support.policy.limits import counting, dollars, hold, slot, tokens, pico

async def main():
    async with counting({"{url!r}"}, lease_s={LEASE_S}) as counters:
        held = await hold(counters, slot(1), dollars(0.5), tokens(4))
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        counters.settle(held, (0, pico(0.125), 4))

asyncio.run(main())
"""


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A running Redis."""
    async with RedisServer() as server:
        yield server


async def holder(server: RedisServer) -> asyncio.subprocess.Process:
    """Another process that holds a slot, half a dollar and four tokens, until it is told to settle by a line."""
    pipe = asyncio.subprocess.PIPE
    code = _HOLDER.replace("{url!r}", repr(server.url))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    return process


@pytest.mark.timed
async def test_process_is_killed_its_holds_are_spent_after_the_lease(server: RedisServer) -> None:
    """Its slot is free again, its worst case is spent, nothing of it is left."""
    async with counting(server.url, lease_s=LEASE_S) as counters, Redis.from_url(server.url) as redis:
        process = await holder(server)
        answer = await counters.reserve((slot(1), dollars(0.5)))
        assert answer == Full(0, 1.0, (0, pico(0.5)))
        process.kill()
        await process.wait()
        began = asyncio.get_running_loop().time()
        while not isinstance(answer := await counters.reserve((slot(1), dollars(0.5))), Hold):
            await asyncio.sleep(0.01)
        took_s = asyncio.get_running_loop().time() - began

        assert LEASE_S / 3 < took_s < LEASE_S + 0.4
        assert await counters.spent(["budget"]) == [(pico(0.5), pico(0.5))]
        assert (await hold(counters, tokens(6))).left == (0,)
        assert counters.statistics().replicas <= 2
        # A call has swept them, and who renews his lease is told so.
        await until(lambda: (counters.statistics().replicas, counters.statistics().swept) == (1, 1))
        kept = {key.decode().split(":")[2] for key in await redis.keys()}
        assert kept == {"slots", "budget", "bucket", "holds", "swept", "replicas", "connections"}
        assert len(await redis.keys("*:holds:*")) == 1
        assert await redis.hlen("{test:limits}:connections") == 1
        assert await redis.zcard("{test:limits}:replicas") == 1
        assert 0 < await redis.ttl((await redis.keys("*:swept:*"))[0]) <= 86_400


async def test_process_stands_still_beyond_its_lease_settles_what_it_has_used(server: RedisServer) -> None:
    """Its worst case was spent meanwhile, its slot is another's; in the end what it has used is spent."""
    async with counting(server.url, lease_s=LEASE_S) as counters:
        process = await holder(server)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: counters.statistics().swept == 1)
        other = await hold(counters, slot(1))
        assert await counters.spent(["budget"]) == [(pico(0.5), 0)]
        process.send_signal(signal.SIGCONT)
        # It says again what it holds, though there is only one slot.
        await until(lambda: counters.statistics().replicas == 2)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        assert await process.wait() == 0

        assert await counters.spent(["budget"]) == [(pico(0.125), 0)]
        counters.settle(other, (0,))
        assert (await hold(counters, slot(1))).left == (0,)


async def test_process_ends_gives_its_lease_back(server: RedisServer) -> None:
    """Nobody waits for the end of a lease of who has closed."""
    async with Redis.from_url(server.url) as redis:
        async with counting(server.url) as counters:
            counters.settle(await hold(counters, dollars(0.5)), (pico(0.25),))
        assert await redis.hgetall("{test:limits}:budget:budget") == {b"held": b"0", b"spent": b"250000000"}
        assert await redis.keys() == [b"{test:limits}:budget:budget"]


async def test_process_that_died_held_very_much_is_swept_in_pieces(server: RedisServer) -> None:
    """Redis never stands still for long, and in the end all of it is spent: more than is swept at once."""
    async with counting(server.url, lease_s=LEASE_S) as counters, Redis.from_url(server.url) as redis:
        async with scripted(server.url) as run:
            await run("renew", b"dead", b"1", b"60000")
            for number in range(600):
                packed = pack_wants((slot(5000), dollars(0.0001, most=100.0)))
                await run("reserve", b"dead", b"1", b"0", b"%d" % number, packed)
            await run("renew", b"dead", b"1", b"1")
        # A piece a renewal; on a busy machine renewals themselves come late.
        await until(lambda: counters.statistics().swept == 600, limit_s=6 * PATIENT_S)

        assert await counters.spent(["budget"]) == [(pico(0.06), 0)]
        assert await redis.exists("{test:limits}:slots:slots", "{test:limits}:holds:dead") == 0


async def test_scripts_a_command_is_sent_twice_counts_once(server: RedisServer) -> None:
    """A reservation, a settlement, a booking, an adoption."""
    packed = pack_wants((tokens(4), slot(5), dollars(0.5)))
    async with counting(server.url) as counters, scripted(server.url) as run:
        await run("renew", b"me", b"1", b"60000")
        for _ in range(2):
            assert await run("reserve", b"me", b"1", b"0", b"id", packed) == [1, 6, 4, 500_000_000]
            assert await run("adopt", b"me", b"1", b"0", pack_holds([(b"id", ())])) == 0
            assert await counters.spent(["budget"]) == [(0, pico(0.5))]
        used = pack_used([("id", (4, 0, pico(0.25)))])
        assert await run("settle", b"me", used) == 0
        assert await run("settle", b"me", used) == [0]
        for _ in range(2):
            await run("book", b"me1", b"0", pack_spent([SpentBefore("budget", pico(0.25), None)]))

        assert await counters.spent(["budget"]) == [(pico(0.5), 0)]
        assert (await hold(counters, tokens(6), slot(5))).left == (0, 4)


async def test_scripts_an_older_connection_speaks_nothing_is_carried_out(server: RedisServer) -> None:
    """What was on its way when a connection broke off may arrive after what the next one says."""
    packed = pack_wants((slot(1),))
    async with counting(server.url) as counters, scripted(server.url) as run:
        await run("renew", b"me", b"9", b"60000")
        await run("renew", b"me", b"10", b"60000")
        assert await run("renew", b"me", b"9", b"60000") == [-1]
        assert await run("reserve", b"me", b"9", b"0", b"id", packed) == [-1]
        assert await run("adopt", b"me", b"9", b"0", pack_holds([(b"id", (slot(1),))])) == -1
        assert await run("reserve", b"unknown", b"1", b"0", b"id", packed) == [-1]

        assert (await hold(counters, slot(1))).left == (0,)
