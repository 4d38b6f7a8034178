"""The store in Redis under everything that happens to a Redis: misses, never errors, and no cost once it is known."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from backends.errors import ConfigurationError
from policies.cache.entry import AnswerForm, Entry
from policies.cache.redis_queues import Breaker
from policies.cache.store_redis import RedisEntryStore, build_redis_store
from tests.support.clock import FakeClock
from tests.support.servers.redis_server import RedisServer, redis_policy
from tests.support.servers.slow_proxy import SlowProxy

KEY = bytes(32)
OTHER_KEY = bytes(range(32))
ENTRY = Entry(AnswerForm.JSON, b"{}", b"application/json", 1.0)
TIMEOUT_S = 0.03


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A running Redis."""
    async with RedisServer() as server:
        yield server


@asynccontextmanager
async def opened(url: str, clock: FakeClock, timeout: str = "30ms") -> AsyncIterator[RedisEntryStore]:
    """A store for that Redis."""
    store = build_redis_store(redis_policy(url, timeout), clock)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def store(server: RedisServer, clock: FakeClock) -> AsyncIterator[RedisEntryStore]:
    """A store that has used its Redis and does not mind a slow machine."""
    async with opened(server.url, clock, timeout="2s") as store:
        await until_found(store, clock)
        yield store


@pytest.fixture
async def hasty_store(server: RedisServer, clock: FakeClock) -> AsyncIterator[RedisEntryStore]:
    """A store that has used its Redis and waits 30 ms for it."""
    async with opened(server.url, clock) as store:
        await until_found(store, clock)
        yield store


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[Redis]:
    """Somebody else at the same Redis."""
    async with Redis.from_url(server.url) as client:
        yield client


async def until_found(store: RedisEntryStore, clock: FakeClock) -> None:
    """Put an entry and look it up until Redis gives it; time passes meanwhile."""
    await until(store, clock, lambda entry: entry is not None, puts=True)


async def until(
    store: RedisEntryStore, clock: FakeClock, is_good: Callable[[Entry | None], bool], *, puts: bool = False
) -> None:
    """Look up, with time passing, until the answer is as wished."""
    async with asyncio.timeout(5.0):
        while True:
            if puts:
                store.put(KEY, ENTRY, 600.0)
                await store.flush(0.2)
            if store.statistics().entries == 0 and is_good(await store.get(KEY)):
                return
            await clock.advance(0.5)
            await asyncio.sleep(0.005)


async def break_it(store: RedisEntryStore, clock: FakeClock) -> None:
    """Look up until the store has noticed that its Redis does not answer."""
    for _ in range(5):
        started = time.monotonic()
        assert await store.get(KEY) is None
        assert time.monotonic() - started < TIMEOUT_S + 0.5
        await clock.advance(2 * TIMEOUT_S)


async def assert_costs_nothing(store: RedisEntryStore) -> None:
    """Look-ups and puts do not touch Redis, so none fails and all are quick."""
    before = store.statistics()
    started = time.process_time()
    for _ in range(1000):
        assert await store.get(KEY) is None

    assert store.statistics().errors == before.errors
    assert time.process_time() - started < 0.2


async def test_get_from_a_killed_redis_is_a_miss_that_soon_costs_nothing(
    server: RedisServer, hasty_store: RedisEntryStore, clock: FakeClock
) -> None:
    """Five failures, then silence; when it is back, empty, the store serves again."""
    await server.kill()
    await break_it(hasty_store, clock)
    await assert_costs_nothing(hasty_store)

    await server.start()
    await until_found(hasty_store, clock)


async def test_get_from_a_paused_redis_waits_its_limit_and_soon_not_at_all(
    server: RedisServer, hasty_store: RedisEntryStore, clock: FakeClock
) -> None:
    """A Redis that holds its connections and says nothing is as good as dead, until it goes on."""
    server.pause()
    await break_it(hasty_store, clock)
    await assert_costs_nothing(hasty_store)

    server.resume()
    await until(hasty_store, clock, lambda entry: entry == ENTRY)


async def test_get_answered_late_keeps_redis_in_use(
    server: RedisServer, hasty_store: RedisEntryStore, clock: FakeClock
) -> None:
    """Answers that come too late for their call show that Redis works: slow connections are not given up for ever."""
    for _ in range(3):
        server.pause()
        assert await hasty_store.get(KEY) is None
        await clock.advance(1.0)
        server.resume()
        async with asyncio.timeout(10):
            while await hasty_store.get(KEY) is None:
                await asyncio.sleep(0.005)

    assert hasty_store.statistics().errors >= 3


async def test_put_to_a_read_only_redis_is_dropped_while_reads_hit(
    store: RedisEntryStore, client: Redis, clock: FakeClock
) -> None:
    """A fail-over in progress costs new answers, not the old ones."""
    await client.replicaof("127.0.0.1", 1)
    store.put(OTHER_KEY, ENTRY, 60.0)
    await store.flush(1.0)

    assert await store.get(KEY) == ENTRY
    assert await store.get(OTHER_KEY) is None
    assert store.statistics().dropped == 1
    await client.replicaof("NO", "ONE")
    store.put(OTHER_KEY, ENTRY, 60.0)
    await store.flush(1.0)
    assert await store.get(OTHER_KEY) == ENTRY


async def test_put_to_a_full_redis_soon_costs_nothing(store: RedisEntryStore, client: Redis, clock: FakeClock) -> None:
    """After five refusals answers are dropped before they are written."""
    await client.config_set("maxmemory", 1)
    for _ in range(5):
        await clock.advance(3.0)
        store.put(OTHER_KEY, ENTRY, 60.0)
        await store.flush(1.0)
    errors = store.statistics().errors
    for _ in range(100):
        store.put(OTHER_KEY, ENTRY, 60.0)

    assert store.statistics().entries == 0
    assert store.statistics().dropped == 105
    assert store.statistics().errors == errors == 5
    assert await store.get(KEY) == ENTRY


async def test_get_of_a_key_with_another_type_is_a_miss(store: RedisEntryStore, client: Redis) -> None:
    """Somebody else's list under our name is not an error, and the next answer replaces it."""
    name = f"test:answer:{KEY.hex()}"
    await client.delete(name)
    await client.lpush(name, "x")

    assert await store.get(KEY) is None
    assert store.statistics().errors == 0
    store.put(KEY, ENTRY, 60.0)
    await store.flush(1.0)
    assert await store.get(KEY) == ENTRY


@pytest.mark.parametrize("value", [b"", b"garbage", b"slipstream answer 1\n\x00\x00\x00\x00\x00", b"\xff" * 5000])
async def test_get_of_garbage_is_a_miss_and_deletes_it(store: RedisEntryStore, client: Redis, value: bytes) -> None:
    """What cannot be read is not read twice."""
    name = f"test:answer:{KEY.hex()}"
    await client.set(name, value)

    assert await store.get(KEY) is None
    await store.flush(1.0)
    assert await client.exists(name) == 0
    assert store.statistics().errors == 1


async def test_get_after_a_restart_reconnects(
    server: RedisServer, hasty_store: RedisEntryStore, clock: FakeClock
) -> None:
    """Connections that died with the old process cost a few misses."""
    await server.kill()
    await server.start()

    await until_found(hasty_store, clock)
    assert hasty_store.statistics().errors <= 5


async def test_put_sets_the_time_to_live(store: RedisEntryStore, client: Redis) -> None:
    """Redis forgets by itself."""
    store.put(OTHER_KEY, ENTRY, 90.0)
    await store.flush(1.0)

    assert 80_000 < await client.pttl(f"test:answer:{OTHER_KEY.hex()}") <= 90_000


async def test_put_while_redis_does_not_write_is_bounded(server: RedisServer, store: RedisEntryStore) -> None:
    """What waits is bounded in number, bytes and size of one; the rest is dropped and counted, and answers at once."""
    server.pause()
    large = Entry(AnswerForm.JSON, b"x" * 1024**2, b"application/json", 1.0)
    store.put(KEY, Entry(AnswerForm.JSON, b"x" * (17 * 1024**2), b"", 1.0), 60.0)
    assert store.statistics().dropped == 1
    for number in range(100):
        store.put(number.to_bytes(32, "big"), large, 60.0)
    assert store.statistics().bytes <= 64 * 1024**2
    assert store.statistics().dropped == 37
    assert store.get_nowait((5).to_bytes(32, "big")) == large
    server.resume()
    await store.flush(5.0)
    server.pause()
    for number in range(3000):
        store.put(number.to_bytes(32, "big"), ENTRY, 60.0)

    assert store.statistics().entries == 1024
    server.resume()


async def test_put_again_while_the_first_is_being_written_keeps_the_second(
    server: RedisServer, store: RedisEntryStore
) -> None:
    """The later answer is not lost behind the earlier one."""
    later = Entry(AnswerForm.JSON, b"[]", b"application/json", 2.0)
    server.pause()
    store.put(OTHER_KEY, ENTRY, 60.0)
    await asyncio.sleep(0.01)
    store.put(OTHER_KEY, later, 60.0)
    server.resume()
    await store.flush(1.0)

    assert await store.get(OTHER_KEY) == later


async def test_get_after_a_crowd_has_given_up_asks_for_nobody_who_left(
    server: RedisServer, hasty_store: RedisEntryStore, client: Redis, clock: FakeClock
) -> None:
    """Look-ups that timed out in the queue are not made up for."""
    await client.config_resetstat()
    server.pause()
    assert (
        await asyncio.gather(*(hasty_store.get(number.to_bytes(32, "little")) for number in range(100))) == [None] * 100
    )
    server.resume()
    await until(hasty_store, clock, lambda entry: entry == ENTRY)
    commands = await client.info("commandstats")

    assert commands["cmdstat_mget"].get("failed_calls", 0) == 0
    assert commands["cmdstat_mget"]["calls"] <= 10


async def test_get_of_many_keys_at_once_shares_round_trips(store: RedisEntryStore, client: Redis) -> None:
    """A burst of look-ups is a handful of commands."""
    for number in range(160):
        store.put(number.to_bytes(32, "big"), ENTRY, 60.0)
    await store.flush(2.0)
    await client.config_resetstat()
    found = await asyncio.gather(*(store.get(number.to_bytes(32, "big")) for number in range(160)))
    commands = await client.info("commandstats")

    assert found.count(ENTRY) == 160
    assert commands["cmdstat_mget"]["calls"] <= 20


async def test_get_cancelled_while_waiting_is_cancelled(server: RedisServer, hasty_store: RedisEntryStore) -> None:
    """A caller that leaves is not held up, and its look-up harms nobody."""
    server.pause()
    waiting = asyncio.ensure_future(hasty_store.get(KEY))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    server.resume()

    async with asyncio.timeout(10):
        while await hasty_store.get(KEY) is None:
            await asyncio.sleep(0.005)


@pytest.mark.timed
async def test_aclose_with_a_paused_redis_ends_in_time(server: RedisServer, clock: FakeClock) -> None:
    """Shutting down does not wait for a Redis that does not answer."""
    async with opened(server.url, clock) as store:
        await until_found(store, clock)
        server.pause()
        store.put(OTHER_KEY, ENTRY, 60.0)
        started = time.monotonic()
        await store.aclose()
        server.resume()

    assert time.monotonic() - started < 2.0


async def test_open_without_redis_does_not_wait(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway starts without its Redis, and what it logs about that holds no secret."""
    caplog.set_level(logging.DEBUG)
    async with opened("redis://user:s3cret-canary@127.0.0.1:1/0", clock) as store:
        await break_it(store, clock)

        assert store.statistics().errors >= 5
    assert "out of order" in caplog.text
    assert "s3cret-canary" not in caplog.text


async def test_get_with_a_wrong_password_is_a_miss_that_reveals_nothing(
    server: RedisServer, client: Redis, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused login is one more way of being out of order."""
    caplog.set_level(logging.DEBUG)
    await client.config_set("requirepass", "right")
    async with opened(f"redis://:s3cret-canary@127.0.0.1:{server.port}/0", clock) as store:
        await break_it(store, clock)
        await assert_costs_nothing(store)
    assert "s3cret-canary" not in caplog.text


@pytest.mark.parametrize("url", ["http://s3cret-canary@host", "s3cret-canary", "redis://:s3cret-canary@host:port/0"])
def test_build_redis_store_with_a_bad_url_does_not_repeat_it(clock: FakeClock, url: str) -> None:
    """The URL holds a password, so the error names the setting only."""
    with pytest.raises(ConfigurationError, match=r"stores\.redis\.url") as caught:
        build_redis_store(redis_policy(url), clock)

    assert "s3cret-canary" not in str(caught.value)


def test_build_redis_store_without_the_client_library_says_what_to_install(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'slipstream-gateway\[redis\]'"):
        build_redis_store(redis_policy("redis://localhost"), clock)


async def test_breaker_pauses_longer_each_time_and_tries_once(clock: FakeClock) -> None:
    """1 s, 2 s, 4 s ... up to 30 s, one try after each; a success ends it."""
    breaker = Breaker(clock, spacing_s=0.01)
    for _ in range(5):
        assert breaker.is_worth_trying()
        breaker.failed()
        await clock.advance(0.02)
    tries = []
    started = clock.now() - 0.02
    for _ in range(1300):
        if breaker.is_worth_trying():
            tries.append(clock.now() - started)
            assert not breaker.is_worth_trying()
            breaker.failed()
        await clock.advance(0.1)

    assert tries == pytest.approx([1, 3, 7, 15, 31, 61, 91, 121], abs=0.5)
    breaker.succeeded()
    assert breaker.is_worth_trying()
    assert breaker.is_worth_trying()


async def test_breaker_counts_failures_of_one_moment_once(clock: FakeClock) -> None:
    """A stall hits every call that waits; it is one failure, and so is each success between enough to go on."""
    breaker = Breaker(clock, spacing_s=0.01)
    for _ in range(100):
        breaker.failed()
    assert breaker.is_worth_trying()
    for _ in range(10):
        await clock.advance(1.0)
        breaker.failed()
        breaker.succeeded()

    assert breaker.is_worth_trying()


@pytest.mark.timed
async def test_get_redis_is_slower_than_a_second_is_waited_for_where_the_policy_says_so(
    server: RedisServer, clock: FakeClock
) -> None:
    """No connection is given up before the look-up on it is."""
    async with SlowProxy(server.port) as proxy:
        async with opened(f"redis://127.0.0.1:{proxy.port}/0", clock, timeout="5s") as store:
            await until_found(store, clock)
            proxy.delay_s = 1.2

            assert await store.get(KEY) == ENTRY
            assert store.statistics().errors == 0
