"""Two gateways on one Redis: what one has stored and learned serves at the other, and outlives either."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.words_server import ENCODER, WordsServer

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("faiss", "numpy", "redis")),
    reason="the extras `semantic` and `redis` are not installed",
)

MAX_QUESTIONS = 800
FEW = 30
SEMANTIC: dict[str, Any] = {
    "mode": "verified",
    "max_wrong_hit_rate": 0.05,
    "encoder": ENCODER,
    "encode_timeout": "10s",
    "search_timeout": "2s",
}


def policy(upstream: WordsServer, **semantic: Any) -> str:
    """A route that is cached in Redis."""
    return json.dumps(
        {
            "version": 1,
            "backends": {"up": {"type": "openai", "base_url": upstream.base_url}},
            "stores": {"redis": {"url": "env:REDIS_URL", "timeout": "2s"}},
            "routes": [
                {
                    "name": "help",
                    "match": {"models": ["*"]},
                    "backends": [{"ref": "up"}],
                    "cache": {"semantic": {**SEMANTIC, **semantic}},
                }
            ],
        }
    )


@pytest.fixture
async def upstream() -> AsyncIterator[WordsServer]:
    """Who answers."""
    async with WordsServer() as server:
        yield server


@pytest.fixture(params=[True, False], ids=["redis 8", "redis 7"])
async def redis(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    """A Redis of either kind."""
    async with RedisServer(vectors=request.param) as server:
        yield server


class User:
    """Asks a gateway."""

    def __init__(self, gateway: Gateway, upstream: WordsServer) -> None:
        self._client = httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=30)
        self._upstream = upstream
        self._number = 0

    async def aclose(self) -> None:
        """Leave."""
        await self._client.aclose()

    async def ask(self) -> str:
        """Ask about the next subject in new words; what `x-cache` says. The answer has to be right."""
        self._number += 1
        question = self._upstream.question(self._number % len(self._upstream.subjects))
        body = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": question}]}
        answer = await self._client.post("/v1/chat/completions", json=body)
        assert answer.json()["choices"][0]["message"]["content"] == self._upstream.answer(question)
        return answer.headers["x-cache"]

    async def ask_until_served(self) -> int:
        """How many questions it takes until one is answered from the cache."""
        for number in range(MAX_QUESTIONS):
            if await self.ask() == "semantic":
                return number
        raise AssertionError(f"nothing served in {MAX_QUESTIONS} questions: {await self.learned()}")

    async def learned(self) -> dict[str, Any]:
        """The state of the decision."""
        [state] = (await self._client.get("/v1/cache/policy")).json()["data"]
        return dict(state)

    async def learns(self, labels: int) -> None:
        """Wait until the decision here has so many labels."""
        async with asyncio.timeout(10):
            while (await self.learned())["labels"] < labels:
                await asyncio.sleep(0.05)


async def test_what_one_gateway_learns_the_other_serves_and_a_restart_keeps(
    redis: RedisServer, upstream: WordsServer
) -> None:
    """The first one takes a hundred labels to begin; the second none of its own, nor either of them once restarted."""
    text, environ = policy(upstream), {"REDIS_URL": redis.url}
    async with start_gateway(text, environ=environ) as left, start_gateway(text, environ=environ) as right:
        mine, theirs = User(left, upstream), User(right, upstream)
        assert await mine.ask_until_served() >= 100
        learned = await mine.learned()
        await theirs.ask()
        await theirs.learns(learned["labels"])

        assert learned["labels"] >= 100
        assert await theirs.ask_until_served() <= FEW

        assert await left.terminate() == 0
        right.process.kill()
        await right.wait_exit()
        for user in (mine, theirs):
            await user.aclose()

    async with start_gateway(text, environ=environ) as again:
        user = User(again, upstream)
        assert await user.ask_until_served() <= FEW
        assert (await user.learned())["labels"] >= learned["labels"]
        await user.aclose()
