"""What every store keeps, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from backends.charges.usage import Usage
from backends.clock import SystemClock
from policies.cache.entry import AnswerForm, Entry
from policies.cache.store import Store
from policies.cache.store_memory import MemoryEntryStore
from policies.cache.store_redis import RedisEntryStore, build_redis_store
from tests.support.servers.redis_server import RedisServer, redis_policy

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
ENTRY = Entry(AnswerForm.JSON, b'{"id": "\xc3\xa9"}', b"application/json", 12.5, Usage(1, 2, 3))
OTHER_ENTRY = Entry(AnswerForm.SSE, b"data: 1\n\ndata: 2\n\n", b"text/event-stream", 13.0, None, (9, 18), True)


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """An open store with nothing in it."""
    clock = SystemClock()
    if request.param == "memory":
        memory = MemoryEntryStore(1024**2, clock)
        await memory.open()
        yield memory
        await memory.aclose()
        return
    async with RedisServer() as server:
        redis = build_redis_store(redis_policy(server.url, timeout="2s"), clock)
        await redis.open()
        yield redis
        await redis.aclose()


async def settle_writes(store: Store) -> None:
    """Wait until what was put has reached where it is kept."""
    if isinstance(store, RedisEntryStore):
        await store.flush(2.0)


@pytest.mark.parametrize("entry", [ENTRY, OTHER_ENTRY], ids=["json", "sse"])
async def test_get_after_put_returns_the_entry(store: Store, entry: Entry) -> None:
    """What was put comes back whole, at once and once it is written."""
    store.put(KEY, entry, 60.0)

    assert await store.get(KEY) == entry
    await settle_writes(store)
    assert await store.get(KEY) == entry


async def test_get_of_unknown_key_is_a_miss(store: Store) -> None:
    """Nothing under a key is None, and counted."""
    store.put(KEY, ENTRY, 60.0)

    assert await store.get(OTHER_KEY) is None
    assert store.get_nowait(OTHER_KEY) is None
    assert store.statistics().misses == 1


async def test_put_twice_keeps_the_later_entry(store: Store) -> None:
    """An answer replaces the one before, written or not."""
    store.put(KEY, ENTRY, 60.0)
    await settle_writes(store)
    store.put(KEY, ENTRY, 60.0)
    store.put(KEY, OTHER_ENTRY, 60.0)

    assert await store.get(KEY) == OTHER_ENTRY
    await settle_writes(store)
    assert await store.get(KEY) == OTHER_ENTRY


@pytest.mark.parametrize("is_written", [False, True])
async def test_delete_leaves_nothing_to_get(store: Store, is_written: bool) -> None:
    """At once and later, of what was written and of what waits for it; what is put after it is there."""
    store.put(KEY, ENTRY, 60.0)
    store.put(OTHER_KEY, ENTRY, 60.0)
    if is_written:
        await settle_writes(store)
    store.delete(KEY)

    assert await store.get(KEY) is None
    await settle_writes(store)
    assert await store.get(KEY) is None
    assert await store.get(OTHER_KEY) == ENTRY
    store.put(KEY, OTHER_ENTRY, 60.0)
    assert await store.get(KEY) == OTHER_ENTRY


async def test_put_with_short_time_to_live_is_gone_afterwards(store: Store) -> None:
    """An answer is served no longer than it may be."""
    store.put(KEY, ENTRY, 0.03)
    store.put(OTHER_KEY, ENTRY, 60.0)
    await settle_writes(store)
    await asyncio.sleep(0.05)

    assert await store.get(KEY) is None
    assert await store.get(OTHER_KEY) == ENTRY


async def test_statistics_count_hits(store: Store) -> None:
    """Each answer that was given is one hit."""
    store.put(KEY, ENTRY, 60.0)
    await settle_writes(store)
    before = store.statistics()
    await store.get(KEY)
    await store.get(KEY)

    assert store.statistics().hits == before.hits + 2
    assert store.statistics().errors == 0


async def test_aclose_twice_is_safe(store: Store) -> None:
    """Whoever closes need not know whether it is closed; later use is a miss."""
    store.put(KEY, ENTRY, 60.0)
    await store.aclose()
    await store.aclose()

    assert await store.get(KEY) is None
