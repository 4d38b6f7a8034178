"""The exact cache in Redis: shared by gateways, and never missed by clients when it is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import OpenAIServer
from tests.support.servers.redis_server import RedisServer

PATH = "/v1/chat/completions"
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
stores: {{redis: {{url: "env:REDIS_URL", timeout: 100ms}}}}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up}}]
    cache: {{exact: {{ttl: 60s}}}}
"""


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    """A Redis of the test's own."""
    async with RedisServer() as server:
        yield server


@pytest.fixture
async def gateways(redis: RedisServer, openai_server: OpenAIServer) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways on one Redis and one upstream."""
    policy = POLICY.format(url=openai_server.base_url)
    environ = {"REDIS_URL": redis.url}
    async with start_gateway(policy, environ=environ) as one, start_gateway(policy, environ=environ) as two:
        yield one, two


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """A call."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


@pytest.mark.timed
async def test_gateways_share_answers_and_outlive_redis(
    gateways: tuple[Gateway, Gateway], redis: RedisServer, openai_server: OpenAIServer
) -> None:
    """What one keeps the other finds, in both forms; Redis killed costs hits and nothing else, and they come back."""
    one, two = gateways
    async with httpx.AsyncClient(verify=False, timeout=10) as client:
        first = await client.post(one.url + PATH, json=chat("shared"))
        second = await _ask_until(client, two, chat("shared"), "hit")
        streamed = await client.post(two.url + PATH, json=chat("shared", stream=True))

        assert first.headers["x-cache"] == "miss"
        assert second.content == first.content
        assert streamed.headers["x-cache"] == "hit"
        assert len(openai_server.requests) == 1

        await redis.kill()
        for number in range(30):
            began = time.monotonic()
            answer = await client.post(one.url + PATH, json=chat(f"without redis {number % 3}"))
            assert answer.status_code == 200
            assert time.monotonic() - began < 1.0
        assert (await client.get(one.url + "/ready")).status_code == 200
        assert (await one.metrics()).value("slipstream_cache_store_errors") > 0

        await redis.start()
        again = await _ask_until(client, one, chat("after"), "hit")
        assert again.status_code == 200
    assert "Traceback" not in one.stderr + two.stderr


@pytest.mark.timed
async def test_redis_that_hangs_costs_its_timeout_and_no_more(
    gateways: tuple[Gateway, Gateway], redis: RedisServer, openai_server: OpenAIServer
) -> None:
    """A stopped process keeps its sockets: look-ups run into their deadline, then the breaker spares even that."""
    one, _ = gateways
    async with httpx.AsyncClient(verify=False, timeout=10) as client:
        await client.post(one.url + PATH, json=chat("warm"))
        redis.pause()
        try:
            took_s = []
            for number in range(20):
                began = time.monotonic()
                answer = await client.post(one.url + PATH, json=chat(f"hangs {number}"))
                took_s.append(time.monotonic() - began)
                assert answer.status_code == 200
        finally:
            redis.resume()

    assert max(took_s) < 1.0
    assert sorted(took_s)[len(took_s) // 2] < 0.1


async def test_redis_that_is_not_there_at_the_start_does_not_stop_it(openai_server: OpenAIServer) -> None:
    """The gateway serves without its cache, and says what is missing."""
    policy = POLICY.format(url=openai_server.base_url)
    async with start_gateway(policy, environ={"REDIS_URL": "redis://127.0.0.1:1/0"}) as gateway:
        async with httpx.AsyncClient(verify=False) as client:
            answer = await client.post(gateway.url + PATH, json=chat("x"))

    assert answer.status_code == 200


async def _ask_until(client: httpx.AsyncClient, gateway: Gateway, body: dict[str, Any], outcome: str) -> httpx.Response:
    """Ask until the cache takes part so: writes to Redis go on behind an answer. Raises: TimeoutError."""
    async with asyncio.timeout(15):
        while True:
            answer = await client.post(gateway.url + PATH, json=body)
            if answer.headers["x-cache"] == outcome:
                return answer
            await asyncio.sleep(0.02)
