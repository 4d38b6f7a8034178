"""The clock of Redis jumps: buckets give their burst at the most, and no call is lost or held for ever."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from policies.limits.counters import Full, Hold
from policies.limits.redis.packing import pack_wants
from tests.support.policy.limits import counting, dollars, hold, pico, scripted, slot, tokens, told, until
from tests.support.servers.redis_server import RedisServer

BUDGET = ["budget"]
PER_MINUTE = 6000
LEASE_S = 0.9


@pytest.fixture(params=[False, True], ids=["redis 7", "redis 8"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    """A Redis of each kind."""
    async with RedisServer(vectors=request.param) as server:
        yield server


async def jump(server: RedisServer, by_s: float) -> None:
    """What a clock that is set forward or back comes to: every moment that is kept is as much earlier or later."""
    async with Redis.from_url(server.url) as redis:
        for name in await redis.zrange("{test:limits}:replicas", 0, -1):
            await redis.zincrby("{test:limits}:replicas", -by_s * 1e6, name)
        for name in await redis.keys("{test:limits}:bucket:*"):
            level, at_us = struct.unpack("<dd", await redis.get(name))
            left_ms = await redis.pttl(name) - round(by_s * 1000)
            if left_ms > 0:
                await redis.set(name, struct.pack("<dd", level, at_us - by_s * 1e6), px=left_ms)
            else:
                await redis.delete(name)


async def test_clock_goes_forward_a_bucket_is_full_and_no_more(server: RedisServer) -> None:
    """And calls under way go on holding what they held."""
    async with counting(server.url) as counters:
        held = await hold(counters, tokens(10), slot(2), dollars(0.25))
        await jump(server, 3600.0)
        assert (await hold(counters, tokens(3), slot(2))).left == (7, 0)
        assert await counters.spent(BUDGET) == [(0, pico(0.25))]
        assert isinstance(await counters.reserve((slot(2),)), Full)
        counters.settle(held, (10, 0, pico(0.125)))
        await told(counters)
        assert await counters.spent(BUDGET) == [(pico(0.125), 0)]


async def test_clock_goes_back_a_bucket_fills_from_now_on(server: RedisServer) -> None:
    """It does not wait for an hour to pass again."""
    empty = tokens(100, capacity=100, per_minute=PER_MINUTE)
    async with counting(server.url) as counters:
        await hold(counters, empty)
        await jump(server, -3600.0)
        answer = await counters.reserve((empty,))
        assert isinstance(answer, Full)
        assert answer.retry_after_s is not None
        assert answer.retry_after_s <= 1.0
        async with asyncio.timeout(10):
            while not isinstance(await counters.reserve((empty,)), Hold):
                await asyncio.sleep(0.02)


async def test_clock_goes_back_what_a_dead_process_held_is_free_after_a_lease(server: RedisServer) -> None:
    """Not an hour later."""
    async with scripted(server.url) as run, counting(server.url, lease_s=LEASE_S) as counters:
        await run("renew", b"dead", b"1", b"60000")
        await run("reserve", b"dead", b"1", b"0", b"dead1", pack_wants((slot(1), dollars(0.5))))
        assert isinstance(await counters.reserve((slot(1),)), Full)
        await jump(server, -3600.0)
        await until(lambda: counters.statistics().swept == 1)
        assert isinstance(await counters.reserve((slot(1),)), Hold)
        assert await counters.spent(BUDGET) == [(pico(0.5), 0)]
