"""Answers that replicas share: seen at once, ending on time, and misses whatever happens to Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest
from redis.asyncio import Redis

from backends.clock import SystemClock
from policies.cache.redis_link import RedisLink
from policies.cache.semantic.answers.redis import RedisAnswerStore
from policies.cache.semantic.contracts import History, SharedStoreUnavailable
from tests.support.clock import FakeClock
from tests.support.policy.vectors import OTHER_SCOPE, SCOPE, make_answer, make_question
from tests.support.servers.redis_server import RedisServer, redis_policy, semantic_link

PREFIX = "test:semantic"
KEY = f"{PREFIX}:{SCOPE.hex()}:answer:one"
LIMIT_S = 0.03


class Replica:
    """One gateway's store on a shared Redis."""

    def __init__(self, store: RedisAnswerStore, link: RedisLink) -> None:
        self.store = store
        self.link = link

    async def put(self, *names: str, life_s: float = 1000.0, answer_id: str | None = None) -> None:
        """Put answers and wait until they are written."""
        for name in names:
            self.store.put(make_answer(name, SystemClock.wall() + life_s, answer_id=answer_id))
        await self.link.flush(2.0)

    async def ids(self, *names: str) -> list[str]:
        """Which of these are found."""
        return [pair[0].id for pair in await self.store.get(SCOPE, names) if pair is not None]

    async def finds_again(self) -> None:
        """Wait until putting and finding works."""
        async with asyncio.timeout(15.0):
            while await self.ids("again") != ["again"]:
                await self.put("again")
                await asyncio.sleep(0.02)


@asynccontextmanager
async def opened(server: RedisServer, timeout: str = "2s") -> AsyncIterator[Replica]:
    """A replica on that Redis, in real time."""
    link = semantic_link(redis_policy(server.url, timeout), SystemClock())
    store = RedisAnswerStore(link, SystemClock(), Random(5))
    await link.open()
    await store.open()
    try:
        yield Replica(store, link)
    finally:
        await store.aclose()
        await link.aclose()


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A Redis of the test's own."""
    async with RedisServer() as server:
        yield server


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[Redis]:
    """Somebody else at the same Redis."""
    async with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def pair(server: RedisServer) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two replicas."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(opened(server)), await stack.enter_async_context(opened(server))


async def test_get_finds_what_another_replica_put_at_once(pair: tuple[Replica, Replica]) -> None:
    """Answers, labels and deletions of one are those of the other as soon as they are written."""
    left, right = pair
    await left.put("one", "two")
    assert await right.ids("one", "two") == ["one", "two"]
    left.store.record(SCOPE, "one", good=1.0)
    right.store.record(SCOPE, "one", good=1.0, served=1)
    await left.link.flush(2.0)
    await right.link.flush(2.0)
    (found,) = await left.store.get(SCOPE, ["one"])
    assert found is not None
    assert found[1] == History(good=2.0, served=1)
    right.store.delete(SCOPE, ["two"])
    await right.link.flush(2.0)

    assert await left.ids("one", "two") == ["one"]


async def test_record_of_bad_labels_by_two_replicas_removes_the_entry(pair: tuple[Replica, Replica]) -> None:
    """One label each is two."""
    left, right = pair
    await left.put("one", "alias", answer_id="same")
    left.store.record(SCOPE, "one", bad=1.0)
    right.store.record(SCOPE, "one", bad=1.0)
    await left.link.flush(2.0)
    await right.link.flush(2.0)

    assert await left.ids("one", "alias") == await right.ids("one", "alias") == []
    assert left.store.statistics().rejected + right.store.statistics().rejected == 2


async def test_record_of_many_at_once_by_two_replicas_loses_none(pair: tuple[Replica, Replica]) -> None:
    """Sums are exact, whoever adds at the same time."""
    left, right = pair
    await left.put("one")

    async def add(replica: Replica) -> None:
        for _ in range(100):
            replica.store.record(SCOPE, "one", good=0.5, served=1)
            await asyncio.sleep(0)
        await replica.link.flush(2.0)

    await asyncio.gather(add(left), add(right))
    (found,) = await left.store.get(SCOPE, ["one"])

    assert found is not None
    assert found[1] == History(good=100.0, served=200)


async def test_record_never_revives_what_is_gone(pair: tuple[Replica, Replica], client: Redis) -> None:
    """A label for an entry that has just gone leaves no key without an end."""
    left, right = pair
    await left.put("one")
    left.store.delete(SCOPE, ["one"])
    await left.link.flush(2.0)
    right.store.record(SCOPE, "one", good=1.0)
    await right.link.flush(2.0)

    assert await client.exists(KEY) == 0


async def test_put_gives_every_key_an_end(pair: tuple[Replica, Replica], client: Redis) -> None:
    """Redis forgets by itself, and no sooner than the longest-lived entry of a list."""
    left, _ = pair
    await left.put("one", life_s=1000.0, answer_id="same")
    await left.put("two", life_s=10.0, answer_id="same")
    left.store.record(SCOPE, "one", good=1.0, served=1)
    await left.link.flush(2.0)
    ends = {key.decode(): await client.pttl(key) for key in await client.keys("*")}

    assert len(ends) == 5
    assert 9_000 <= ends.pop(f"{PREFIX}:{SCOPE.hex()}:answer:two") <= 11_000
    assert all(900_000 <= end <= 1_100_000 for end in ends.values())


async def test_put_forgets_the_names_of_what_has_ended(pair: tuple[Replica, Replica], client: Redis) -> None:
    """The list of all answers follows what is stored, not what was."""
    left, _ = pair
    await left.put(*(f"old {number}" for number in range(100)), life_s=0.05)
    await asyncio.sleep(0.1)
    await left.put(*(f"new {number}" for number in range(300)))

    assert 300 <= await client.zcard(f"{PREFIX}:answers") <= 330
    assert len(await left.store.listing(SCOPE, 1000)) == 300


async def test_get_after_the_end_by_this_clock_is_a_miss(server: RedisServer, clock: FakeClock) -> None:
    """Redis's clock may lag; an answer is not served beyond its end."""
    link = semantic_link(redis_policy(server.url, "2s"), clock)
    store = RedisAnswerStore(link, clock, Random(5))
    await link.open()
    store.put(make_answer("one", clock.wall() + 1000.0))
    await link.flush(2.0)
    before = await store.get(SCOPE, ["one"])
    await clock.advance(1101.0)
    after = await store.get(SCOPE, ["one"])
    listed = await store.listing(SCOPE, 10)
    await link.aclose()

    assert before[0] is not None
    assert after == [None]
    assert listed == []


@pytest.mark.parametrize(
    "packed",
    [b"", b"garbage", b"slipstream stored answer 1\n\x00\x00\x00\x00\x00", b"\xff" * 5000],
    ids=["empty", "garbage", "torn", "binary"],
)
async def test_get_of_foreign_bytes_is_a_miss_and_deletes_them(
    pair: tuple[Replica, Replica], client: Redis, packed: bytes
) -> None:
    """What cannot be read is not read twice."""
    left, _ = pair
    await client.hset(KEY, mapping={"packed": packed, "expires": "9e9"})

    assert await left.ids("one") == []
    await left.link.flush(2.0)
    assert await client.exists(KEY) == 0
    assert left.store.statistics().errors == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("packed", b"cut"),
        ("expires", b"soon"),
        ("expires", b"nan"),
        ("good", b"much"),
        ("bad", b"inf"),
        ("served", b"1.5"),
    ],
)
async def test_get_of_a_damaged_field_is_a_miss(
    pair: tuple[Replica, Replica], client: Redis, field: str, value: bytes
) -> None:
    """A hash that is ours but for one field is not ours."""
    left, _ = pair
    await left.put("one")
    await client.hset(KEY, field, value)  # type: ignore[arg-type]  # bytes are taken

    assert await left.ids("one") == []
    assert left.store.statistics().errors == 1


async def test_get_of_an_answer_copied_to_another_name_is_a_miss(pair: tuple[Replica, Replica], client: Redis) -> None:
    """An answer is one under its own scope and id only."""
    left, _ = pair
    await left.put("one")
    copied = await client.dump(KEY)
    await client.restore(f"{PREFIX}:{SCOPE.hex()}:answer:two", 0, copied)
    await client.restore(f"{PREFIX}:{OTHER_SCOPE.hex()}:answer:one", 0, copied)

    assert await left.ids("two", "one") == ["one"]
    assert await left.store.get(OTHER_SCOPE, ["one"]) == [None]


async def test_get_of_keys_with_another_type_is_a_miss_and_others_are_found(
    pair: tuple[Replica, Replica], client: Redis
) -> None:
    """Somebody else's string under our name takes nothing else down, however often it is met."""
    left, _ = pair
    await left.put("two")
    await client.set(KEY, b"foreign")
    for _ in range(10):
        assert await left.ids("one", "two") == ["two"]
        await left.put("one")
        left.store.record(SCOPE, "one", bad=1.0)
    await left.put("three")

    assert await left.ids("three") == ["three"]
    assert left.store.statistics().errors >= 10


@pytest.mark.timed
async def test_get_from_a_killed_redis_says_nothing_is_known_and_recovers(server: RedisServer) -> None:
    """Not None for each, which would say that they are gone: nothing at all; and it soon costs nothing."""
    async with opened(server, "30ms") as replica:
        await replica.finds_again()
        await server.kill()
        for _ in range(8):
            started = time.monotonic()
            assert await replica.store.get(SCOPE, ["again", "other"]) == []
            assert time.monotonic() - started < LIMIT_S + 0.3
            await asyncio.sleep(0.05)
        started = time.process_time()
        for number in range(500):
            assert await replica.store.get(SCOPE, ["again"]) == []
            replica.store.put(make_answer(str(number), time.time() + 100.0))
        assert time.process_time() - started < 0.5
        await replica.link.flush(3.0)
        assert replica.store.statistics().dropped > 0
        await server.start()
        await replica.finds_again()


@pytest.mark.timed
async def test_get_from_a_stalled_redis_waits_its_limit(server: RedisServer) -> None:
    """A Redis that says nothing costs each look-up its limit at most."""
    async with opened(server, "30ms") as replica:
        await replica.finds_again()
        server.pause()
        for _ in range(3):
            started = time.monotonic()
            assert await replica.store.get(SCOPE, ["again"]) == []
            assert time.monotonic() - started < LIMIT_S + 0.2
        server.resume()
        await replica.finds_again()

        assert replica.store.statistics().misses >= 3


async def test_put_while_redis_does_not_write_is_bounded(server: RedisServer) -> None:
    """What waits is bounded; the rest is dropped and counted, and what waits is found by whoever put it."""
    async with opened(server, "2s") as replica:
        await replica.put("one")
        server.pause()
        for number in range(3000):
            replica.store.put(make_answer(str(number), time.time() + 1000.0))
        assert replica.store.statistics().entries == 1024
        assert replica.store.statistics().dropped == 3000 - 1024
        server.resume()

        assert await replica.ids("5", "2999") == ["5"]


async def test_listing_of_a_redis_that_is_away_says_so(server: RedisServer) -> None:
    """An empty page would be a lie to whoever wants to delete."""
    async with opened(server, "30ms") as replica:
        await replica.put("one")
        await server.kill()
        with pytest.raises(SharedStoreUnavailable):
            await replica.store.listing(SCOPE, 10)


async def test_listing_passes_over_foreign_names(pair: tuple[Replica, Replica], client: Redis) -> None:
    """What stands in the list and is no name of ours, or names nothing, is not listed."""
    left, _ = pair
    await left.put("one")
    foreign = ["zz/x", "nothing", "/", f"{SCOPE.hex()}/ghost", f"{SCOPE.hex()}/", b"\xff\xfe"]
    await client.zadd(f"{PREFIX}:answers", dict.fromkeys(foreign, 0.0))  # type: ignore[arg-type]  # bytes are taken

    assert [answer.id for answer, _ in await left.store.listing(None, 100)] == ["one"]


async def test_listing_finds_rare_tags_among_many(pair: tuple[Replica, Replica]) -> None:
    """A filter looks at all there is, not at the first page of it."""
    left, _ = pair
    for number in range(600):
        tags = ("rare",) if number in (3, 300, 599) else ()
        left.store.put(make_answer(f"{number:03}", time.time() + 1000.0, tags=tags))
        if number % 200 == 199:
            await left.link.flush(2.0)

    found = [answer.id for answer, _ in await left.store.listing(SCOPE, 10, tag="rare")]
    assert found == ["003", "300", "599"]
    assert len(await left.store.listing(None, 1000)) == 600


async def test_put_by_two_writers_at_once_keeps_one_whole(pair: tuple[Replica, Replica]) -> None:
    """The same id from both sides is one of the two answers, never a mixture."""
    left, right = pair
    for turn in range(30):
        for replica, model in ((left, "left"), (right, "right")):
            question = make_question(f"asked by {model}")
            replica.store.put(make_answer("one", time.time() + 1000.0, model=model, question=question))
        await asyncio.gather(left.link.flush(2.0), right.link.flush(2.0))
        (found,) = await (left, right)[turn % 2].store.get(SCOPE, ["one"])

        assert found is not None
        assert found[0].question.text == f"asked by {found[0].model}"
