"""Redis dead, silent or read-only: calls go on without it, hardly slower, and the gateway stays ready."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.faults import CACHE, CHAT, CaseServer, percentile, policy
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import Connections, chat_body
from tests.support.servers.redis_server import RedisServer

_CALLS = 100
_MAX_ADDED_MS = 5.0


class _Caller:
    """Asks the gateway one thing after the other, never the same twice."""

    def __init__(self, gateway: Gateway) -> None:
        self.connections = Connections(gateway.port)
        self._numbers = itertools.count()

    async def times_ms(self, count: int = _CALLS) -> list[float]:
        """How long so many calls took; each must be answered."""
        times = []
        for _ in range(count):
            started_at = time.monotonic()
            answer = await self.connections.post(CHAT, chat_body(f"call {next(self._numbers)}"))
            times.append((time.monotonic() - started_at) * 1e3)
            assert answer.status == 200
            assert answer.header(b"x-cache") == b"miss"
        return times

    async def hit(self) -> bool:
        """Whether an answer is kept."""
        body = chat_body(f"kept {next(self._numbers)}")
        answers = [await self.connections.post(CHAT, body) for _ in range(2)]
        assert {answer.status for answer in answers} == {200}
        return answers[1].header(b"x-cache") == b"hit"

    async def is_ready(self, gateway: Gateway) -> bool:
        """What /ready says."""
        return (await gateway.raw(b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    """A Redis of the test's own."""
    async with RedisServer() as server:
        yield server


@pytest.fixture
async def gateway(redis: RedisServer) -> AsyncIterator[Gateway]:
    """A gateway that caches in that Redis."""
    async with CaseServer() as upstream:
        text = policy(
            upstream.base_url,
            routes={"*": {"cache": CACHE}},
            stores={"redis": {"url": "env:REDIS_URL", "timeout": "5ms"}},
        )
        async with start_gateway(text, environ={"REDIS_URL": redis.url}) as made:
            yield made


@pytest.fixture
async def caller(gateway: Gateway) -> AsyncIterator[_Caller]:
    """A client of that gateway."""
    made = _Caller(gateway)
    yield made
    await made.connections.aclose()


async def _spoil(redis: RedisServer, how: str) -> None:
    if how == "dead":
        await redis.kill()
    elif how == "silent":
        redis.pause()
    else:
        command = b"CONFIG SET maxmemory 1\r\n" if how == "full" else b"REPLICAOF 127.0.0.1 1\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", redis.port)
        writer.write(command)
        assert await reader.readline() == b"+OK\r\n"
        writer.close()
        await writer.wait_closed()


@pytest.mark.alone
@pytest.mark.parametrize("how", ["dead", "silent", "read-only", "full"])
async def test_redis_that_fails_costs_calls_next_to_nothing(
    redis: RedisServer, gateway: Gateway, caller: _Caller, how: str
) -> None:
    """Every call is answered; once the breaker has opened, in the time it took before; /ready stays 200."""
    assert await caller.hit()
    before_ms = await caller.times_ms()
    await _spoil(redis, how)
    try:
        while_opening_ms = await caller.times_ms(20)
        after_ms = await caller.times_ms()

        assert await caller.is_ready(gateway)
    finally:
        if how == "silent":
            redis.resume()
    assert max(while_opening_ms) <= 500
    assert percentile(after_ms, 0.9) - percentile(before_ms, 0.9) <= _MAX_ADDED_MS
    assert "Traceback" not in gateway.stderr


async def test_redis_that_comes_back_is_used_again(redis: RedisServer, caller: _Caller) -> None:
    """Nobody has to restart anything."""
    await redis.kill()
    await caller.times_ms(20)
    await redis.start()
    async with asyncio.timeout(20):
        while not await caller.hit():
            await asyncio.sleep(0.05)
