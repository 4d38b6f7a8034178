"""Redis goes, comes back empty, is slow, refuses, loses a reply: what was used counts once, and nobody waits long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from policies.limits.counters import Away, Full, Hold
from policies.limits.redis.store import RedisCounters
from tests.support.policy.limits import counting, dollars, hold, pico, slot, tokens, told, until
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.slow_proxy import SlowProxy

BUDGET = ["budget"]


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A running Redis."""
    async with RedisServer() as server:
        yield server


async def back(counters: RedisCounters) -> None:
    """Wait until Redis counts again."""
    await until(lambda: not counters.statistics().is_away)


async def settled(counters: RedisCounters) -> None:
    """Wait until Redis has every settlement, also those it has asked for again."""
    for _ in range(3):
        await told(counters)
    await until(lambda: counters.statistics().waiting == 0)


async def test_reserve_redis_restarts_empty_holds_go_on_and_what_they_use_is_spent(server: RedisServer) -> None:
    """Calls under way hold their slots and their worst case in the new Redis too."""
    async with counting(server.url) as counters:
        going_on = await hold(counters, slot(2), dollars(0.5, most=9.0))
        ended_meanwhile = await hold(counters, slot(2), dollars(0.25, most=9.0))
        await server.kill()
        await until(lambda: counters.statistics().is_away)
        assert await counters.reserve((slot(2),)) == Away()
        counters.settle(ended_meanwhile, (0, pico(0.125)))
        await server.start()
        await back(counters)
        await settled(counters)

        assert await counters.spent(BUDGET) == [(pico(0.125), pico(0.5))]
        assert (await hold(counters, slot(2))).left == (0,)
        counters.settle(going_on, (0, pico(0.375)))
        assert await counters.spent(BUDGET) == [(pico(0.5), 0)]


@pytest.mark.parametrize("command", ["SCRIPT FLUSH", "FLUSHALL"])
async def test_reserve_redis_forgets_is_told_again_while_the_call_waits(server: RedisServer, command: str) -> None:
    """Scripts or everything: no call notices, and what is held is held."""
    async with counting(server.url) as counters, Redis.from_url(server.url) as redis:
        held = await hold(counters, slot(2), dollars(0.5))
        await asyncio.sleep(1.1)
        await redis.execute_command(*command.split())
        assert (await hold(counters, slot(2))).left == (0,)
        counters.settle(held, (0, pico(0.25)))
        await settled(counters)

        assert await counters.spent(BUDGET) == [(pico(0.25), 0)]
        assert counters.statistics().outages == 0


async def test_reserve_redis_becomes_a_replica_is_away_until_it_is_none(server: RedisServer) -> None:
    """After a failover the old address may be read-only; settlements wait for it."""
    async with counting(server.url) as counters, Redis.from_url(server.url) as redis:
        held = await hold(counters, dollars(0.5))
        await redis.replicaof("127.0.0.1", 1)
        assert await counters.reserve((slot(),)) == Away()
        counters.settle(held, (pico(0.25),))
        assert await counters.spent(BUDGET) == Away()
        await redis.replicaof("NO", "ONE")
        await back(counters)
        await settled(counters)

        assert await counters.spent(BUDGET) == [(pico(0.25), 0)]


async def test_reserve_redis_is_full_is_away_and_loses_no_settlement(server: RedisServer) -> None:
    """Out of memory, Redis counts no more calls."""
    async with counting(server.url) as counters, Redis.from_url(server.url) as redis:
        held = await hold(counters, dollars(0.5))
        await redis.config_set("maxmemory", 1)
        assert await counters.reserve((slot(),)) == Away()
        counters.settle(held, (pico(0.25),))
        await redis.config_set("maxmemory", 0)
        await back(counters)
        await settled(counters)

        assert await counters.spent(BUDGET) == [(pico(0.25), 0)]
        assert (await hold(counters, slot())).left == (0,)


@pytest.mark.parametrize("reply_is_late_by_s", [0.0, 0.5])
async def test_reserve_reply_is_lost_on_the_way_is_counted_once(server: RedisServer, reply_is_late_by_s: float) -> None:
    """Redis has carried out what nobody has heard of: the call asks again, and has it once."""
    async with SlowProxy(server.port) as proxy, counting(f"redis://127.0.0.1:{proxy.port}") as counters:
        await asyncio.sleep(1.1)
        for round_ in range(5):
            proxy.delay_s = reply_is_late_by_s
            asking = [
                asyncio.ensure_future(counters.reserve((slot(100), dollars(0.125, most=900.0)))) for _ in range(4)
            ]
            await asyncio.sleep(0.02)
            proxy.cut()
            proxy.delay_s = 0.0
            held = [answer for answer in await asyncio.gather(*asking) if isinstance(answer, Hold)]
            for each in held:
                counters.settle(each, (0, pico(0.0625)))
            proxy.cut()
            await back(counters)
            await settled(counters)
            assert await counters.spent(BUDGET) == [(pico(0.0625 * 4) * (round_ + 1), 0)]
            assert len(held) == 4
            await asyncio.sleep(1.1)
        assert (await hold(counters, slot(100))).left == (99,)


async def test_settle_reply_is_lost_on_the_way_is_counted_once(server: RedisServer) -> None:
    """Nobody knows whether Redis has it, so it is sent again."""
    async with SlowProxy(server.port) as proxy, counting(f"redis://127.0.0.1:{proxy.port}") as counters:
        for round_ in range(1, 6):
            held = [await hold(counters, slot(100), dollars(0.125, most=900.0)) for _ in range(5)]
            proxy.delay_s = 0.3
            for each in held:
                counters.settle(each, (0, pico(0.0625)))
            await asyncio.sleep(0.05)
            proxy.cut()
            proxy.delay_s = 0.0
            await back(counters)
            await settled(counters)

            assert await counters.spent(BUDGET) == [(pico(0.0625 * 5) * round_, 0)]
        assert (await hold(counters, slot(100))).left == (99,)


@pytest.mark.timed
async def test_reserve_redis_is_slow_nobody_waits_longer_than_the_limit(server: RedisServer) -> None:
    """Calls under way are answered at the limit, later ones at once; what comes late is given back."""
    async with (
        SlowProxy(server.port) as proxy,
        counting(f"redis://127.0.0.1:{proxy.port}", timeout_s=0.1) as counters,
    ):
        await hold(counters, tokens(1))
        proxy.delay_s = 0.4
        began = time.monotonic()
        answers = await asyncio.gather(*[counters.reserve((slot(9), dollars(0.125))) for _ in range(5)])
        took_s = time.monotonic() - began
        assert answers == [Away()] * 5
        assert await counters.reserve((slot(9),)) == Away()
        assert time.monotonic() - began - took_s < 0.05
        proxy.delay_s = 0.0
        await back(counters)
        await settled(counters)

        assert took_s < 0.3
        assert await counters.spent(BUDGET) == [(0, 0)]
        assert (await hold(counters, slot(9))).left == (8,)


async def test_reserve_redis_stops_in_the_middle_is_away_until_it_goes_on(server: RedisServer) -> None:
    """A connection that is silent is given up; what was asked on it is not carried out later on."""
    async with counting(server.url, timeout_s=0.1) as counters:
        server.pause()
        assert await counters.reserve((slot(1), dollars(0.5))) == Away()
        await asyncio.sleep(3.5)
        server.resume()
        await back(counters)
        await settled(counters)

        assert await counters.spent(BUDGET) == [(0, 0)]
        assert (await hold(counters, slot(1))).left == (0,)


async def test_reserve_cancelled_holds_nothing(server: RedisServer) -> None:
    """A client that leaves while its call asks leaves nothing behind, however far the call had come."""
    async with SlowProxy(server.port, delay_s=0.005) as proxy:
        async with counting(f"redis://127.0.0.1:{proxy.port}") as counters:
            for delay_ms in range(12):
                asking = asyncio.ensure_future(counters.reserve((slot(1), tokens(3), dollars(0.5))))
                await asyncio.sleep(delay_ms / 1000)
                asking.cancel()
                answer = (await asyncio.gather(asking, return_exceptions=True))[0]
                if isinstance(answer, Hold):
                    counters.settle(answer, (0, 0, 0))
            await settled(counters)

            assert await counters.spent(BUDGET) == [(0, 0)]
            assert (await hold(counters, slot(1), tokens(10))).left == (0, 0)
            assert counters.statistics().held == 1


@pytest.mark.parametrize(
    "reply",
    [
        "-LOADING Redis is loading the dataset in memory",
        "-MISCONF Redis is configured to save RDB snapshots",
        "-CLUSTERDOWN Hash slot not served",
        "-BUSY Redis is busy running a script",
        "-NOPERM this user has no permissions",
        "-ERR unknown command",
        "-MOVED 7 127.0.0.1:1",
        "HTTP/1.1 400 Bad Request",
        "*100000000",
        "$-7",
    ],
)
async def test_reserve_peer_is_no_redis_that_counts_is_away_and_left_alone(
    reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it says: one line in the log, few connections, and an answer for each call."""
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        while await reader.read(65536):
            writer.write(f"{reply}\r\n".encode())
        writer.close()

    peer = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = peer.sockets[0].getsockname()[1]
    with caplog.at_level(logging.INFO):
        async with counting(f"redis://user:secret@127.0.0.1:{port}", timeout_s=0.1) as counters:
            for _ in range(20):
                assert await counters.reserve((slot(),)) == Away()
                await asyncio.sleep(0.02)
    peer.close()

    assert 1 <= num_connections < 12
    assert len(caplog.messages) == 1
    assert "secret" not in caplog.text


async def test_open_redis_is_down_says_so_once_and_counts_as_soon_as_it_is_there(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway starts without its Redis."""
    await server.kill()
    with caplog.at_level(logging.INFO, "policies"):
        async with counting(server.url, when_away="share") as counters:
            assert await counters.reserve((slot(),)) == Away()
            await server.start()
            await back(counters)
            assert isinstance(await counters.reserve((slot(),)), Hold)

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_reserve_redis_is_away_allowed_calls_are_not_counted(server: RedisServer) -> None:
    """With `allow` everybody goes on, and nothing of that is counted later."""
    async with counting(server.url, when_away="allow") as counters:
        await server.kill()
        await until(lambda: counters.statistics().is_away)
        answers = [await hold(counters, slot(1), tokens(9), dollars(0.5)) for _ in range(3)]
        assert {(each.is_counted, each.left) for each in answers} == {(False, (1, 10, pico(1.0)))}
        for each in answers:
            counters.settle(each, (0, 9, pico(0.5)))
        await server.start()
        await back(counters)
        await settled(counters)

        assert await counters.spent(BUDGET) == [(0, 0)]
        assert counters.statistics().without == 3


async def test_reserve_redis_is_away_each_process_gives_its_share(server: RedisServer) -> None:
    """Two of them together give no more than there is; what they have spent is booked when Redis is back."""
    async with (
        counting(server.url, when_away="share", lease_s=0.9) as one,
        counting(server.url, when_away="share", lease_s=0.9) as other,
    ):
        both = (one, other)
        before = [await hold(each, slot(6), dollars(0.25, most=2.0)) for each in both]
        one.settle(before[0], (0, pico(0.5)))
        await until(lambda: one.statistics().replicas == other.statistics().replicas == 2)
        await told(one)
        # What is left is seen with a call.
        for each in both:
            each.settle(await hold(each, dollars(0.0, most=2.0)), (0,))
            await told(each)
        await server.kill()
        await until(lambda: one.statistics().is_away and other.statistics().is_away)
        counts = []
        for each in both:
            num_slots = 0
            while isinstance(await each.reserve((slot(6),)), Hold):
                num_slots += 1
            num_tokens = 0
            while isinstance(await each.reserve((tokens(1, capacity=20),)), Hold):
                num_tokens += 1
            spent = 0
            while isinstance(answer := await each.reserve((dollars(0.25, most=2.0),)), Hold):
                each.settle(answer, (pico(0.125),))
                spent += 1
            assert isinstance(answer, Full)
            counts.append((num_slots, num_tokens, spent))
        await server.start()
        await back(one)
        await back(other)
        await settled(one)
        await settled(other)

        # Of 6 slots one is taken by a call of the other. Of 2 dollars 0.5 are spent and 0.25 held: 0.625 for each, and
        # a call that is alone may be larger than the rest.
        assert counts == [(3, 10, 5), (2, 10, 5)]
        assert await one.spent(BUDGET) == [(pico(0.125 * 10), pico(0.25))]
        assert isinstance(await one.reserve((slot(6),)), Full)


@pytest.mark.parametrize(("policy", "num_lines"), [("allkeys-lru", 1), ("volatile-ttl", 1), ("noeviction", 0)])
async def test_redis_evicts_keys_is_said_once(
    server: RedisServer, policy: str, num_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """For what it evicts is not counted any more; once for each Redis and not for each connection."""
    async with Redis.from_url(server.url) as redis, SlowProxy(server.port) as proxy:
        await redis.config_set("maxmemory-policy", policy)
        async with counting(f"redis://127.0.0.1:{proxy.port}") as counters:
            for _ in range(2):
                assert isinstance(await counters.reserve((slot(9),)), Hold)
                await asyncio.sleep(1.1)
                proxy.cut()
                await back(counters)
    assert sum("noeviction" in message for message in caplog.messages) == num_lines
