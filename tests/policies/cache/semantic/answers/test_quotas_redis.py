"""What one tenant may fill of a shared Redis: counted in Redis itself, over all replicas and all of its scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest
from redis.asyncio import Redis

from backends.clock import SystemClock
from policies.cache.redis_link import RedisLink
from policies.cache.semantic.answers.quotas import Quota
from policies.cache.semantic.answers.redis import RedisAnswerStore
from tests.support.policy.vectors import OTHER_SCOPE, SCOPE, make_answer, make_question
from tests.support.servers.redis_server import RedisServer, redis_policy, semantic_link

THIRD_SCOPE = bytes(32)
BODY = b"x" * 2000
QUOTA_BYTES = 33_000
NUM_HELD = 6
"""Answers of 5,400 bytes, with what they cost besides."""
QUOTAS = {
    SCOPE: Quota("a", QUOTA_BYTES),
    THIRD_SCOPE: Quota("a", QUOTA_BYTES),
    OTHER_SCOPE: Quota("b", 10**9),
}


class Replica:
    """One gateway's store."""

    def __init__(self, store: RedisAnswerStore, link: RedisLink) -> None:
        self.store = store
        self.link = link

    async def put(self, *names: str, scope: bytes = SCOPE, life_s: float = 1000.0, body: bytes = BODY) -> None:
        """Put answers, one after the other."""
        for name in names:
            question = make_question(scope=scope)
            self.store.put(make_answer(name, SystemClock.wall() + life_s, body=body, question=question))
            await self.link.flush(2.0)

    async def ids(self, *names: str, scope: bytes = SCOPE) -> list[str]:
        """Which of these are found."""
        return [pair[0].id for pair in await self.store.get(scope, names) if pair is not None]


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[Replica]:
    """A replica on that Redis."""
    link = semantic_link(redis_policy(server.url, "2s"), SystemClock())
    store = RedisAnswerStore(link, SystemClock(), Random(5), quota=QUOTAS.__getitem__)
    await link.open()
    try:
        yield Replica(store, link)
    finally:
        await link.aclose()


@pytest.fixture(params=[True, False], ids=["redis 8", "redis 7"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    """A Redis of either kind."""
    async with RedisServer(vectors=request.param) as server:
        yield server


@pytest.fixture
async def pair(server: RedisServer) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two replicas."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(opened(server)), await stack.enter_async_context(opened(server))


async def test_put_beyond_a_tenants_quota_costs_that_tenant(pair: tuple[Replica, Replica]) -> None:
    """Both replicas together keep within it, over all of its scopes; the newest stays, and nobody else's goes."""
    left, right = pair
    await left.put("b1", "b2", "b3", scope=OTHER_SCOPE)
    mine = [f"a{number}" for number in range(30)]
    for number, name in enumerate(mine):
        await (left, right)[number % 2].put(name)
    await left.put("c", scope=THIRD_SCOPE)
    await left.put("too large", body=b"x" * QUOTA_BYTES)

    assert await left.ids("b1", "b2", "b3", scope=OTHER_SCOPE) == ["b1", "b2", "b3"]
    assert await left.ids("c", scope=THIRD_SCOPE) == ["c"]
    held = await left.ids(*mine)
    assert len(held) == NUM_HELD - 1
    assert await left.ids("too large") == []
    assert left.store.statistics().evicted + right.store.statistics().evicted == 25
    assert left.store.statistics().dropped == 1


async def test_put_beyond_the_quota_keeps_what_is_used_and_right(pair: tuple[Replica, Replica]) -> None:
    """What goes is what saves least per byte."""
    left, right = pair
    await left.put("used", "wrong", "right")
    for _ in range(9):
        right.store.record(SCOPE, "used", served=1)
    left.store.record(SCOPE, "wrong", bad=5.0)
    left.store.record(SCOPE, "right", good=5.0)
    for replica in pair:
        await replica.link.flush(2.0)
    await right.put(*(f"other {number}" for number in range(20)))

    assert await left.ids("used", "right", "wrong") == ["used", "right"]


async def test_room_of_what_is_gone_is_room_again(pair: tuple[Replica, Replica], server: RedisServer) -> None:
    """Whether it was deleted, rejected, written anew, moved to Redis's own end, or died of its age."""
    left, right = pair
    await left.put("deleted", "rejected", "expired", "again")
    await right.put("again")
    right.store.delete(SCOPE, ["deleted"])
    left.store.record(SCOPE, "rejected", bad=1.0)
    right.store.record(SCOPE, "rejected", bad=1.0)
    for replica in pair:
        await replica.link.flush(2.0)
    async with Redis.from_url(server.url) as client:
        await client.delete(f"test:semantic:{SCOPE.hex()}:answer:expired")
        await left.put(*(f"new {number}" for number in range(NUM_HELD)))
        sizes = await client.execute_command("HVALS", "test:semantic:tenant:a")
        total = await client.execute_command("HGET", "test:semantic:tenant:a", "bytes")

    held = await left.ids("again", *(f"new {number}" for number in range(NUM_HELD)))
    assert len(held) == NUM_HELD
    assert left.store.statistics().evicted + right.store.statistics().evicted == 1
    assert 2 * int(total) == sum(map(int, sizes)) <= 2 * QUOTA_BYTES
    assert len(sizes) == NUM_HELD + 1
