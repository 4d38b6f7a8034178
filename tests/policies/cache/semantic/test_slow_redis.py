"""A Redis that answers, but late: the look-up gives up after its limit, is counted, and the call goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest

from backends.clock import SystemClock
from policies.cache.redis_link import RedisLink
from policies.cache.semantic.answers.quotas import Quotas
from policies.cache.semantic.answers.redis import RedisAnswerStore
from policies.cache.semantic.index.redis import RedisIndex
from policies.cache.semantic.learning.decisions import LearnedDecisions
from policies.cache.semantic.semantic import SemanticCache, SemanticParts
from policies.cache.semantic.vector_space import VectorSpace
from policies.cache.settings import CachePolicy
from tests.support.calls import read_all
from tests.support.policy.cache import Upstream, answer_chat
from tests.support.policy.semantic import DIMENSION, FixedDecider, FlatIndex, WordEncoder, question
from tests.support.policy.vectors import until
from tests.support.servers.redis_server import RedisServer, redis_policy, semantic_link
from tests.support.servers.slow_proxy import SlowProxy

LIMIT_S = 0.005
SLOW_S = 0.06
RESET, RESET_TOO = "how do I reset my password please", "how do I reset the password please"


class Stage:
    """A semantic cache on a Redis behind a proxy, with the limits that a policy has by default."""

    def __init__(self, port: int) -> None:
        clock = SystemClock()
        self.link: RedisLink = semantic_link(redis_policy(f"redis://127.0.0.1:{port}/0", "5ms"), clock)
        self.index = RedisIndex(
            *(self.link, FlatIndex(), clock),
            origin="me",
            fingerprint="words:1",
            dimension=DIMENSION,
            ttl_s=lambda scope: 600.0,
        )
        self.answers = RedisAnswerStore(self.link, clock, Random(1))
        self.space = VectorSpace(WordEncoder(), lambda encoder: self.index)
        book = LearnedDecisions(FixedDecider, None)
        policy = CachePolicy.model_validate({"semantic": {"mode": "static", "encode_timeout": "5s"}})
        parts = SemanticParts(self.space, self.answers, book, Quotas(10**9), clock, Random(1))
        self.upstream = Upstream(answer_chat)
        self.cache = SemanticCache(self.upstream, policy, parts, route="route")

    async def ask(self, text: str) -> tuple[str, float]:
        """Why the answer came from where it came, and after how many seconds. It has to come."""
        began = time.monotonic()
        reply = await self.cache.send(question(text))
        took_s = time.monotonic() - began
        headers = dict(reply.headers)
        assert msgspec.json.decode(await read_all(reply))["choices"]
        await self.cache.settle()
        return headers[b"x-cache-reason"].decode(), took_s


@asynccontextmanager
async def opened(proxy: SlowProxy) -> AsyncIterator[Stage]:
    """A stage that has found out what its Redis can do."""
    stage = Stage(proxy.port)
    await stage.link.open()
    await stage.space.open()
    await stage.cache.open()
    try:
        await until(lambda: stage.index.statistics().kind != "unknown")
        yield stage
    finally:
        await stage.cache.aclose()
        await stage.space.aclose()
        await stage.link.aclose()


@pytest.fixture(params=[True, False], ids=["redis 8", "redis 7"])
async def proxy(request: pytest.FixtureRequest) -> AsyncIterator[SlowProxy]:
    """A proxy that is quick yet, before a Redis of either kind."""
    async with RedisServer(vectors=request.param) as server, SlowProxy(server.port) as made:
        yield made


async def _wait_served(stage: Stage) -> None:
    async with asyncio.timeout(15):
        while (await stage.ask(RESET_TOO))[0] != "static":
            await asyncio.sleep(0.05)


@pytest.mark.alone
@pytest.mark.timed
async def test_slow_redis_is_a_counted_miss_then_left_alone_then_used_again(
    proxy: SlowProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers that are late open the breaker: from then on nothing waits for it, until it is quick again."""
    async with opened(proxy) as stage:
        await stage.ask(RESET)
        await _wait_served(stage)

        # A busy machine may have been late by itself.
        caplog.clear()
        proxy.delay_s = SLOW_S
        late: list[tuple[str, float]] = []
        while "is out of order" not in caplog.text:
            assert len(late) < 60
            late.append(await stage.ask(RESET_TOO))
            # Failures that follow each other more quickly than the limit count as one.
            await asyncio.sleep(2 * LIMIT_S)
        errors = stage.link.statistics().errors
        left_alone = [await stage.ask(RESET_TOO) for _ in range(20)]
        errors = stage.link.statistics().errors - errors

        assert {reason for reason, _ in (*late, *left_alone)} <= {"store_away", "search_slow", "no_candidate"}
        # Its limit, and what a busy machine adds; far from the delay of a single reply.
        assert sorted(took_s for _, took_s in late)[len(late) // 2] < SLOW_S / 2
        assert len([reason for reason, _ in left_alone if reason == "search_slow"]) + errors <= 1

        proxy.delay_s = 0.0
        await _wait_served(stage)
