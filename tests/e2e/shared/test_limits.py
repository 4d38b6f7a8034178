"""Limits and budgets in Redis: gateways have them together, a killed one holds nothing, and they do without Redis."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer
from tests.support.servers.redis_server import RedisServer

PATH = "/v1/chat/completions"
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
stores:
  redis: {{url: "env:REDIS_URL", prefix: "e2e"}}
  limits: {{when_away: {when_away}}}
limits:
  - {{name: calls, per: all, models: ["limited"], rpm: 60, burst: 20s, concurrent: 3}}
budgets:
  - {{name: money, per: all, models: ["priced"], usd: 0.05, every: total}}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 0, output_per_1m: 1000}}}}]
"""


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    """A Redis of the test's own."""
    async with RedisServer() as server:
        yield server


@pytest.fixture(params=["share"])
async def gateways(
    redis: RedisServer, openai_server: OpenAIServer, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways on one Redis and one upstream."""
    policy = POLICY.format(url=openai_server.base_url, when_away=request.param)
    environ = {"REDIS_URL": redis.url}
    async with start_gateway(policy, environ=environ) as one, start_gateway(policy, environ=environ) as two:
        yield one, two


def chat(model: str, **fields: Any) -> dict[str, Any]:
    """A call whose answer has two words, each a tenth of a cent where it is priced."""
    return {"model": model, "messages": [{"role": "user", "content": "one two"}], "max_tokens": 10, **fields}


async def statuses(gateways: tuple[Gateway, ...], num_calls: int, model: str) -> Counter[int]:
    """Of calls that come at these gateways in turns, one after another."""
    found: Counter[int] = Counter()
    async with httpx.AsyncClient(verify=False, timeout=20) as client:
        for number in range(num_calls):
            answer = await client.post(gateways[number % len(gateways)].url + PATH, json=chat(model))
            found[answer.status_code] += 1
    return found


async def test_gateways_have_one_limit_and_one_budget(
    gateways: tuple[Gateway, Gateway], openai_server: OpenAIServer
) -> None:
    """Two of them give what one gives, and nothing refused is sent."""
    limited = await statuses(gateways, 30, "limited")
    num_sent = len(openai_server.requests)
    priced = await statuses(gateways, 40, "priced")

    assert 20 <= limited[200] <= 24
    assert num_sent == limited[200]
    # Two tenths of a cent each: 25 of them use 5 cents up exactly.
    assert priced == {200: 25, 429: 15}
    assert len(openai_server.requests) - num_sent == 25
    values = [(await gateway.metrics()).value("slipstream_limit_store_away") for gateway in gateways]
    assert values == [0, 0]


async def test_gateway_is_killed_with_calls_under_way_the_other_gets_their_slots(
    gateways: tuple[Gateway, Gateway], openai_server: OpenAIServer
) -> None:
    """As long as the lease lasts they are held, then they are free and their most is spent."""
    one, two = gateways
    openai_server.next(*[Behaviour(delay_s=60.0)] * 3)
    async with httpx.AsyncClient(verify=False, timeout=30) as client:
        asking = [asyncio.ensure_future(client.post(one.url + PATH, json=chat("limited"))) for _ in range(3)]
        async with asyncio.timeout(10):
            while len(openai_server.requests) < 3:
                await asyncio.sleep(0.01)
        refused = await client.post(two.url + PATH, json=chat("limited"))
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        os.kill(one.process.pid, signal.SIGKILL)
        await asyncio.gather(*asking, return_exceptions=True)
        async with asyncio.timeout(25):
            while (await client.post(two.url + PATH, json=chat("limited"))).status_code != 200:
                await asyncio.sleep(0.2)
    # Whoever asks next has swept them, and the next one who renews his lease is told so.
    async with asyncio.timeout(15):
        while (await two.metrics()).value("slipstream_limit_swept_total") != 3:
            await asyncio.sleep(0.1)


async def test_redis_is_killed_gateways_give_their_shares_and_tell_it_later(
    gateways: tuple[Gateway, Gateway], redis: RedisServer
) -> None:
    """Each lets in half of the bucket; the budget's half is used; Redis hears of it when it is back."""
    one, two = gateways
    assert await statuses((one,), 1, "priced") == {200: 1}
    # Else the second one would see what the first call could cost held, and not what it has cost.
    async with asyncio.timeout(15):
        while (told := await one.metrics()).value("slipstream_limit_held") or told.value(
            "slipstream_limit_settlements_waiting"
        ):
            await asyncio.sleep(0.05)
    assert await statuses((two,), 1, "priced") == {200: 1}
    # The first one is to have seen the second.
    async with asyncio.timeout(15):
        while (await one.metrics()).value("slipstream_limit_replicas") != 2:
            await asyncio.sleep(0.1)
    await redis.kill()
    limited = [await statuses((each,), 30, "limited") for each in gateways]
    priced = [await statuses((each,), 20, "priced") for each in gateways]
    assert (await one.metrics()).value("slipstream_limit_store_away") == 1
    await redis.start()
    async with asyncio.timeout(15):
        for each in gateways:
            while (await each.metrics()).value("slipstream_limit_store_away"):
                await asyncio.sleep(0.05)
    after = await statuses(gateways, 40, "priced")

    for each in limited:
        assert 10 <= each[200] <= 13
    # When each of them last saw it, about 4 cents were left beside what its own call could cost: 10 calls for each.
    for each in priced:
        assert 9 <= each[200] <= 11
    # Redis has lost the first two calls, but not those.
    assert after[200] == 25 - sum(each[200] for each in priced)
    for gateway in gateways:
        assert gateway.stderr.count("redis does not count limits and budgets") == 1
        assert gateway.stderr.count("redis counts limits and budgets again") <= 1
        assert "Traceback" not in gateway.stderr


@pytest.mark.parametrize("gateways", ["refuse"], indirect=True)
@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
        (("CLIENT", "PAUSE", "2500", "ALL"), ("PING",)),
    ],
    ids=["full", "read-only", "without replicas", "silent"],
)
async def test_redis_takes_nothing_is_away_as_a_dead_one_is(
    gateways: tuple[Gateway, Gateway], redis: RedisServer, breaks: tuple[str, ...], mends: tuple[str, ...]
) -> None:
    """What is limited is refused, what is not goes on; the budget is where it was once Redis is all right."""
    assert await statuses(gateways, 4, "priced") == {200: 4}
    async with Redis.from_url(redis.url) as client:
        await client.execute_command(*breaks)
        assert await statuses(gateways, 4, "limited") == {503: 4}
        assert await statuses(gateways, 4, "free") == {200: 4}
        assert [(await gateway.metrics()).value("slipstream_limit_store_away") for gateway in gateways] == [1, 1]
        await client.execute_command(*mends)
    async with asyncio.timeout(20):
        for gateway in gateways:
            while (await gateway.metrics()).value("slipstream_limit_store_away"):
                await asyncio.sleep(0.05)
    assert await statuses(gateways, 30, "priced") == {200: 21, 429: 9}
    assert not any("Traceback" in gateway.stderr for gateway in gateways)


@pytest.mark.parametrize("gateways", ["refuse"], indirect=True)
async def test_redis_is_killed_refuse_says_so(gateways: tuple[Gateway, Gateway], redis: RedisServer) -> None:
    """Only calls that a rule concerns."""
    assert await statuses(gateways, 2, "limited") == {200: 2}
    await redis.kill()
    assert await statuses(gateways, 4, "limited") == {503: 4}
    assert await statuses(gateways, 4, "free") == {200: 4}
