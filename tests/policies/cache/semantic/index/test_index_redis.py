"""The index that replicas share: exact against brute force, found by all, and indifferent to what happens to Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from backends.clock import SystemClock
from policies.cache.redis_link import RedisLink
from policies.cache.semantic.contracts import Question
from policies.cache.semantic.index.redis import RedisIndex
from tests.support.policy.vectors import DIMENSION, OTHER_SCOPE, SCOPE, FlatIndex, make_question, unit_vector, until
from tests.support.servers.redis_server import RedisServer, redis_policy, semantic_link

QUESTION = make_question()
PREFIX = "test:semantic"
SET_KEY = f"{PREFIX}:{SCOPE.hex()}:vectors:{QUESTION.group.hex()}"
STREAM_KEY = f"{PREFIX}:changes:f"
TIMEOUT = "30ms"


class Replica:
    """One gateway's index on a shared Redis."""

    def __init__(self, index: RedisIndex, link: RedisLink, embedded: FlatIndex) -> None:
        self.index = index
        self.link = link
        self.embedded = embedded

    async def ids(self, number: int, count: int = 10, question: Question = QUESTION) -> list[str]:
        """Who is near the vector of that number, nearest first."""
        return [each.id for each in await self.index.search(question, unit_vector(number), count)]

    async def finds(self, number: int, limit_s: float = 5.0) -> None:
        """Wait until that vector is the nearest to itself."""
        async with asyncio.timeout(limit_s):
            while (await self.ids(number, 1)) != [str(number)]:
                await asyncio.sleep(0.01)

    def add(self, *numbers: int) -> None:
        """Add vectors under their numbers."""
        for number in numbers:
            self.index.add(QUESTION, str(number), unit_vector(number))

    def is_kind(self, kind: str) -> bool:
        """How it works now."""
        return self.index.statistics().kind == kind


@asynccontextmanager
async def opened(
    server: RedisServer,
    origin: str = "one",
    *,
    timeout: str = "2s",
    ttl_s: Callable[[bytes], float] = lambda scope: 600.0,
    max_stream_length: int = 1000,
) -> AsyncIterator[Replica]:
    """A replica on that Redis."""
    clock = SystemClock()
    link = semantic_link(redis_policy(server.url, timeout), clock)
    embedded = FlatIndex()
    index = RedisIndex(
        *(link, embedded, clock),
        origin=origin,
        fingerprint="f",
        dimension=DIMENSION,
        ttl_s=ttl_s,
        max_stream_length=max_stream_length,
    )
    await link.open()
    await index.open()
    try:
        yield Replica(index, link, embedded)
    finally:
        await index.aclose()
        await link.aclose()


@asynccontextmanager
async def replicas(server: RedisServer, count: int = 2, timeout: str = "2s") -> AsyncIterator[list[Replica]]:
    """Several replicas that know what their Redis can do."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(opened(server, str(n), timeout=timeout)) for n in range(count)]
        await until(lambda: not any(replica.is_kind("unknown") for replica in made))
        yield made


@pytest.fixture(params=[True, False], ids=["vector sets", "stream"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    """A Redis of either kind."""
    async with RedisServer(vectors=request.param) as server:
        yield server


@pytest.fixture
async def new_server() -> AsyncIterator[RedisServer]:
    """A Redis with vector sets."""
    async with RedisServer(vectors=True) as server:
        yield server


@pytest.fixture
async def old_server() -> AsyncIterator[RedisServer]:
    """A Redis without."""
    async with RedisServer(vectors=False) as server:
        yield server


async def test_search_finds_what_another_replica_added_within_a_second(server: RedisServer) -> None:
    """Two gateways on one Redis are one cache, both ways, for additions and removals."""
    async with replicas(server) as (left, right):
        left.add(1, 2)
        right.add(3)
        await right.finds(1, 1.0)
        await left.finds(3, 1.0)
        left.index.remove(QUESTION, ["3", "1"])
        async with asyncio.timeout(1.0):
            while sorted(await right.ids(3)) != ["2"]:
                await asyncio.sleep(0.005)

        assert await left.ids(3) == ["2"]


async def test_open_later_finds_what_was_added_before(server: RedisServer) -> None:
    """A new replica starts with what the others have, removals included, even its own from before a restart."""
    async with replicas(server, 1) as (first,):
        first.add(*range(200))
        first.index.remove(QUESTION, [str(number) for number in range(100)])
        await first.link.flush(5.0)
    async with opened(server, "0 again") as second:
        await second.finds(150)
        async with asyncio.timeout(5.0):
            while len(await second.ids(150, 300)) != 100 or "7" in await second.ids(7, 300):
                await asyncio.sleep(0.01)


@pytest.mark.timed
async def test_search_of_a_killed_redis_is_quick_and_goes_on_when_it_is_back(server: RedisServer) -> None:
    """Misses meanwhile, within the limit; afterwards the index works again, though empty."""
    async with replicas(server, 1, TIMEOUT) as (replica,):
        replica.add(1)
        await replica.finds(1)
        await server.kill()
        started = time.monotonic()
        for number in range(20):
            await replica.ids(1)
            replica.add(100 + number)
        assert time.monotonic() - started < 20 * 0.03 + 1.0
        await server.start()
        async with asyncio.timeout(15.0):
            while await replica.ids(2, 1) != ["2"]:
                replica.add(2)
                await asyncio.sleep(0.05)

        assert replica.index.statistics().errors + replica.link.statistics().errors > 0


@pytest.mark.timed
async def test_search_of_a_stalled_redis_is_a_miss_within_its_limit(new_server: RedisServer) -> None:
    """A Redis that says nothing costs each look-up its limit at most, is counted, and serves again at once."""
    async with replicas(new_server, 1, TIMEOUT) as (replica,):
        replica.add(1)
        await replica.finds(1)
        # On a busy machine some of these were too late.
        before = replica.index.statistics().away
        new_server.pause()
        for _ in range(3):
            started = time.monotonic()
            assert await replica.ids(1) == []
            assert time.monotonic() - started < 0.03 + 0.2
        away = replica.index.statistics().away
        new_server.resume()
        await replica.finds(1)

        assert away - before == 3


async def test_follow_a_stalled_redis_takes_up_where_it_was(old_server: RedisServer) -> None:
    """Searches go on from memory; what others add during the stall arrives after it."""
    async with replicas(old_server, 2, TIMEOUT) as (left, right):
        left.add(1)
        await right.finds(1)
        old_server.pause()
        right.add(2)
        assert await left.ids(1, 1) == ["1"]
        await asyncio.sleep(1.2)
        old_server.resume()
        async with asyncio.timeout(10.0):
            while await left.ids(3, 1) != ["3"]:
                right.add(3)
                await asyncio.sleep(0.05)


async def test_kind_is_asked_again_after_a_reconnect(new_server: RedisServer) -> None:
    """An upgrade or a downgrade of Redis behind the same address is noticed."""
    async with replicas(new_server, 1) as (replica,):
        assert replica.is_kind("vector_sets")
        await new_server.restart(vectors=False)
        async with asyncio.timeout(15.0):
            while not replica.is_kind("stream"):
                await replica.ids(1)
                await asyncio.sleep(0.05)
        replica.add(1)
        await replica.finds(1)
        await new_server.restart(vectors=True)
        async with asyncio.timeout(15.0):
            while not replica.is_kind("vector_sets"):
                await asyncio.sleep(0.05)
        async with asyncio.timeout(15.0):
            while await replica.ids(2, 1) != ["2"]:
                replica.add(2)
                await asyncio.sleep(0.05)


@pytest.mark.timed
async def test_open_without_redis_does_not_wait_and_starts_when_it_is_there(server: RedisServer) -> None:
    """Until Redis says what it can do nothing is found, and that is counted."""
    await server.kill()
    started = time.monotonic()
    async with opened(server, timeout=TIMEOUT) as replica:
        assert time.monotonic() - started < 0.5
        replica.add(1)
        assert await replica.ids(1) == []
        assert replica.is_kind("unknown")
        assert replica.index.statistics().away == 1
        await server.start()
        async with asyncio.timeout(15.0):
            while await replica.ids(2, 1) != ["2"]:
                replica.add(2)
                await asyncio.sleep(0.05)


async def test_search_of_a_key_of_another_type_is_a_miss(new_server: RedisServer) -> None:
    """Somebody else's string under a group's name: no neighbours there, counted, and other groups go on."""
    other = make_question(group=b"h" * 32)
    async with replicas(new_server, 1) as (replica,), Redis.from_url(new_server.url) as client:
        await client.set(SET_KEY, b"foreign")
        for _ in range(20):
            assert await replica.ids(1) == []
            replica.add(1)
            await replica.link.flush(2.0)
        replica.index.add(other, "5", unit_vector(5))
        await replica.link.flush(2.0)

        assert await replica.ids(5, question=other) == ["5"]
        assert replica.index.statistics().errors >= 40
        assert replica.index.statistics().away == 0


async def test_search_of_a_set_with_another_dimension_is_a_miss(new_server: RedisServer) -> None:
    """Vectors of somebody else's encoder are never compared."""
    async with replicas(new_server, 1) as (replica,), Redis.from_url(new_server.url) as client:
        await client.execute_command("VADD", SET_KEY, "VALUES", 2, 0.6, 0.8, "x")

        assert await replica.ids(1) == []
        assert replica.index.statistics().errors == 1


async def test_search_that_finds_foreign_names_gives_them_as_they_are(new_server: RedisServer) -> None:
    """Bytes that are no text are an id that nobody knows."""
    async with replicas(new_server, 1) as (replica,), Redis.from_url(new_server.url) as client:
        await client.execute_command("VADD", SET_KEY, "FP32", unit_vector(1).tobytes(), b"\xff\xfe", "Q8")

        assert len(await replica.ids(1)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"other": b"x"},
        {"change": b""},
        {"change": b"\xff\x00garbage"},
        {"change": msgspec.msgpack.encode(("x", b"s", b"g", ("1",), b"abc"))},
        {"change": msgspec.msgpack.encode(("x", b"s", b"g", ("1",), b"\x00\x00\xc0\x7f" * DIMENSION))},
        {"change": msgspec.msgpack.encode(("x", b"s", b"g", (), unit_vector(1).tobytes()))},
    ],
    ids=["no change", "empty", "garbage", "no vector", "not a number", "no id"],
)
async def test_follow_of_foreign_bytes_counts_them_and_goes_on(
    old_server: RedisServer, fields: dict[str, bytes]
) -> None:
    """What cannot be read is left out."""
    async with replicas(old_server) as (left, right), Redis.from_url(old_server.url) as client:
        await client.xadd(STREAM_KEY, fields)  # type: ignore[arg-type]  # dict is invariant
        right.add(1)
        await left.finds(1)

        assert left.index.statistics().errors == 1
        assert left.embedded.groups.keys() == {QUESTION.group}


async def test_follow_of_a_key_of_another_type_is_counted(old_server: RedisServer) -> None:
    """Each replica has its own index then, until the name is free."""
    async with Redis.from_url(old_server.url) as client:
        await client.set(STREAM_KEY, b"foreign")
        async with replicas(old_server) as (left, right):
            left.add(1)
            await left.finds(1)
            await until(lambda: left.index.statistics().errors > 0)
            await client.delete(STREAM_KEY)
            right.add(2)
            await left.finds(2)


async def test_add_prolongs_the_set_and_an_idle_one_vanishes(new_server: RedisServer) -> None:
    """Vectors of a group that nobody asks in do not stay for ever."""
    async with opened(new_server, ttl_s=lambda scope: 0.2) as replica, Redis.from_url(new_server.url) as client:
        await until(lambda: replica.is_kind("vector_sets"))
        for number in range(4):
            replica.add(number)
            await replica.link.flush(2.0)
            await asyncio.sleep(0.1)
        assert len(await replica.ids(0)) == 4
        await asyncio.sleep(0.25)

        assert await client.exists(SET_KEY) == 0
        assert await replica.ids(0) == []


async def test_stream_is_bounded_and_vanishes(old_server: RedisServer) -> None:
    """Only the latest changes are kept, for as long as an answer may live."""
    async with (
        opened(old_server, ttl_s=lambda scope: 90.0, max_stream_length=200) as replica,
        Redis.from_url(old_server.url) as client,
    ):
        await until(lambda: replica.is_kind("stream"))
        for start in range(0, 1000, 250):
            replica.add(*range(start, start + 250))
            await replica.link.flush(5.0)

        assert await client.xlen(STREAM_KEY) <= 400
        assert 80_000 < await client.pttl(STREAM_KEY) <= 90_000


async def test_ttl_is_that_of_each_scope(server: RedisServer) -> None:
    """Routes that encode alike share the rest: what one keeps for a day, another may keep for a minute."""
    other = make_question(scope=OTHER_SCOPE)
    lives = {QUESTION.scope: 90.0, other.scope: 9.0}
    async with opened(server, ttl_s=lives.__getitem__) as replica, Redis.from_url(server.url) as client:
        await until(lambda: not replica.is_kind("unknown"))
        for question in (QUESTION, other):
            replica.index.add(question, "1", unit_vector(1))
        await replica.link.flush(5.0)
        ends = {key.decode(): await client.pttl(key) for key in await client.keys("*")}
        has_sets = replica.is_kind("vector_sets")

    other_key = f"{PREFIX}:{other.scope.hex()}:vectors:{other.group.hex()}"
    expected = {SET_KEY: 90_000, other_key: 9_000} if has_sets else {STREAM_KEY: 90_000}
    assert ends.keys() == expected.keys()
    assert all(limit - 5_000 < ends[key] <= limit for key, limit in expected.items())


async def test_add_never_stores_the_question(server: RedisServer) -> None:
    """What people asked is in the answers, under their scope, and nowhere else."""
    question = make_question("my canary question")
    async with replicas(server, 1) as (replica,), Redis.from_url(server.url) as client:
        replica.index.add(question, "1", unit_vector(1))
        await replica.link.flush(2.0)
        keys = await client.keys("*")
        dumps = [await client.dump(key) for key in keys]

        assert dumps
        assert not any(b"canary" in part for part in [*keys, *dumps])


_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "remove"]), st.integers(0, 2), st.integers(0, 25)), max_size=60
)


@settings(max_examples=40)
@given(actions=_ACTIONS, asked=st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_search_after_any_changes_agrees_with_brute_force(
    actions: list[tuple[str, int, int]], asked: list[int]
) -> None:
    """Two writers, three groups: every entry of the group and no other, in order, with its cosine."""
    asyncio.run(_compare_with_brute_force(actions, asked))


async def _compare_with_brute_force(actions: list[tuple[str, int, int]], asked: list[int]) -> None:
    async with RedisServer(vectors=True) as server, replicas(server) as made:
        oracle = FlatIndex()
        questions = [make_question(group=bytes([number]) * 32) for number in range(3)]
        for turn, (action, group, number) in enumerate(actions):
            question = questions[group]
            writer = made[turn % 2]
            if action == "add":
                for index in (writer.index, oracle):
                    index.add(question, str(number), unit_vector(number))
            else:
                for index in (writer.index, oracle):
                    index.remove(question, [str(number)])
            await writer.link.flush(2.0)
        for number in asked:
            for question in questions:
                await _assert_alike(made[number % 2].index, oracle, question, number)


async def _assert_alike(index: RedisIndex, oracle: FlatIndex, question: Question, number: int) -> None:
    found = await index.search(question, unit_vector(number), 30)
    expected = {each.id: each.similarity for each in await oracle.search(question, unit_vector(number), 30)}

    assert {each.id for each in found} == expected.keys()
    similarities = [each.similarity for each in found]
    assert similarities == sorted(similarities, reverse=True)
    assert similarities == pytest.approx([expected[each.id] for each in found], abs=0.01)


async def test_search_of_many_real_sized_vectors_recalls_the_nearest(new_server: RedisServer) -> None:
    """384 numbers and a thousand entries that differ little: at least 97 of 100 are the truly nearest."""
    clock = SystemClock()
    link = semantic_link(redis_policy(new_server.url, "2s"), clock)
    index = RedisIndex(link, FlatIndex(), clock, origin="o", fingerprint="f", dimension=384, ttl_s=lambda scope: 60.0)
    await link.open()
    await index.open()
    await until(lambda: index.statistics().kind == "vector_sets")
    centres = np.stack([unit_vector(number, dimension=384) for number in range(20)])
    near = centres[np.arange(1000) % 20] + 0.6 * np.stack([unit_vector(7, n, dimension=384) for n in range(1000)])
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    for number, vector in enumerate(near):
        index.add(QUESTION, str(number), vector.astype(np.float32))
        if number % 200 == 199:
            await link.flush(10.0)
    hits = 0
    for number in range(100):
        wanted = near[number * 7] + 0.3 * unit_vector(9, number, dimension=384)
        wanted = (wanted / np.linalg.norm(wanted)).astype(np.float32)
        (found,) = await index.search(QUESTION, wanted, 1)
        hits += float(near[int(found.id)] @ wanted) >= float((near @ wanted).max()) - 0.005
    await index.aclose()
    await link.aclose()

    assert hits >= 97
