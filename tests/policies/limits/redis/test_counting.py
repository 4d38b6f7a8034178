"""The counters in Redis count as those in memory do, whoever asks and however they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from backends.clock import SystemClock
from policies.limits.counters import Full, Hold, Rate, Slots, Spend, Want
from policies.limits.memory import MemoryCounters
from policies.limits.redis.store import RedisCounters
from tests.support.policy.limits import PATIENT_S, counting, dollars, hold, pico, slot, tokens, told
from tests.support.servers.redis_server import RedisServer


@pytest.fixture(params=[False, True], ids=["redis 7", "redis 8"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    """A Redis of each kind."""
    async with RedisServer(vectors=request.param) as server:
        yield server


async def test_reserve_two_processes_share_what_there_is(server: RedisServer) -> None:
    """What one has got, the other cannot get; what it gives back, the other can."""
    async with counting(server.url) as one, counting(server.url) as other:
        held = await hold(one, tokens(8), slot(), dollars(0.75))

        assert await other.reserve((tokens(3),)) == Full(0, pytest.approx(60.0, abs=1.0), (2,))
        assert await other.reserve((slot(),)) == Full(0, 1.0, (0,))
        assert await other.reserve((dollars(0.5),)) == Full(0, 1.0, (pico(0.25),))
        assert await other.spent(["budget", "unknown"]) == [(0, pico(0.75)), (0, 0)]

        one.settle(held, (1, 0, pico(0.125)))
        await told(one)
        again = await hold(other, tokens(9), slot(), dollars(0.875))
        assert again.left == (0, 0, 0)


async def test_reserve_one_of_several_is_full_takes_nothing_of_the_others(server: RedisServer) -> None:
    """All or none, and the first that does not fit is named."""
    async with counting(server.url) as counters:
        await hold(counters, slot())
        answer = await counters.reserve((tokens(5), slot(), dollars(0.5), tokens(99, key="more", capacity=9)))

        assert answer == Full(1, 1.0, (10, 0, pico(1.0), 9))
        assert (await hold(counters, tokens(10), dollars(1.0))).left == (0, 0)


async def test_reserve_budget_is_spent_until_its_window_ends(server: RedisServer) -> None:
    """Who comes later is told when the window is over."""
    ends_at = SystemClock.wall() + 500.0
    async with counting(server.url) as counters:
        counters.settle(await hold(counters, dollars(0.5, ends_at=ends_at)), (pico(1.5),))
        answer = await counters.reserve((dollars(0.0, ends_at=ends_at),))
        for_ever = await counters.reserve((dollars(0.0),))

        assert answer == Full(0, pytest.approx(500.0, abs=5.0), (pico(-0.5),))
        assert for_ever == Full(0, None, (pico(-0.5),))


async def test_reserve_call_is_alone_may_be_larger_than_the_rest(server: RedisServer) -> None:
    """A budget is used to its end, and overspent by one call at the most."""
    async with counting(server.url) as counters:
        alone = await hold(counters, dollars(7.0))
        assert isinstance(await counters.reserve((dollars(0.000001),)), Full)
        counters.settle(alone, (pico(0.5),))
        small = await hold(counters, dollars(0.25))
        assert isinstance(await counters.reserve((dollars(7.0),)), Full)
        counters.settle(small, (pico(0.25),))
        assert (await hold(counters, dollars(7.0))).left == (pico(-6.75),)


async def test_settle_bucket_goes_below_zero_and_never_above_its_capacity(server: RedisServer) -> None:
    """Who has used more than he asked for makes all wait; a refund fills no more than there is room."""
    async with counting(server.url) as counters:
        held = await hold(counters, tokens(5))
        counters.settle(held, (25,))
        answer = await counters.reserve((tokens(1),))
        assert answer == Full(0, pytest.approx(16 * 60.0, abs=1.0), (-15,))

        generous = await hold(counters, tokens(5, key="other"))
        assert (await hold(counters, tokens(0, key="other", capacity=5))).left == (5,)
        counters.settle(generous, (0,))
        assert (await hold(counters, tokens(0, key="other"))).left == (10,)


async def test_reserve_amount_above_the_capacity_is_cut_to_it(server: RedisServer) -> None:
    """Or it would be refused for ever."""
    async with counting(server.url) as counters:
        held = await hold(counters, tokens(5000))
        assert held.left == (0,)
        counters.settle(held, (4,))
        assert (await hold(counters, tokens(6))).left == (0,)


async def test_reserve_amount_above_the_capacity_is_taken_up_to_a_minute(server: RedisServer) -> None:
    """It waits for a full bucket only, and those behind it wait for all of it, as in memory."""
    memory = MemoryCounters(SystemClock())
    want = tokens(40, per_minute=60)
    async with counting(server.url) as counters:
        for each in (counters, memory):
            held = await each.reserve((want,))
            assert isinstance(held, Hold)
            assert held.left == (-30,)
            refused = await each.reserve((want,))
            assert isinstance(refused, Full)
            assert refused.retry_after_s == pytest.approx(40.0, abs=1.0)
            each.settle(held, (40,))
            small = await each.reserve((tokens(1, per_minute=60),))
            assert isinstance(small, Full)
            assert small.retry_after_s == pytest.approx(31.0, abs=1.0)

            huge = tokens(10**9, key="huge", per_minute=60)
            held = await each.reserve((huge,))
            assert isinstance(held, Hold)
            assert held.left == (-50,)
            each.settle(held, (10,))
            after = await each.reserve((tokens(0, key="huge", per_minute=60),))
            assert isinstance(after, Hold)
            assert after.left == (0,)


async def test_reserve_bucket_fills_by_the_clock_of_redis(server: RedisServer) -> None:
    """As much flows in as is said, and a retry at the moment that was told succeeds."""
    fast = tokens(50, capacity=50, per_minute=60_000)
    async with counting(server.url) as counters:
        await hold(counters, fast)
        answer = await counters.reserve((fast,))
        assert isinstance(answer, Full)
        assert answer.retry_after_s is not None
        assert 0.02 < answer.retry_after_s <= 0.05
        await asyncio.sleep(answer.retry_after_s)

        assert (await hold(counters, fast)).left[0] < 50


async def test_reserve_keys_that_are_hardly_text_are_counted(server: RedisServer) -> None:
    """A key may have a client's words in it, half a surrogate pair too."""
    async with counting(server.url) as counters:
        for key in ("", "\x00\r\n", "naïve {x}:y", "\ud800", "x" * 70_000):
            counters.settle(await hold(counters, slot(key=f"s{key}"), dollars(0.5, key=key)), (0, pico(0.5)))
            assert await counters.spent([key]) == [(pico(0.5), 0)]


async def test_settle_everything_leaves_nothing_but_what_was_spent(server: RedisServer) -> None:
    """Keys of calls go with the calls; a bucket's key goes when the bucket is full, a budget's after its window."""
    ends_at = SystemClock.wall() + 100.0
    async with counting(server.url) as counters, Redis.from_url(server.url) as redis:
        held = await hold(counters, tokens(5, per_minute=6000), slot(), dollars(0.5, ends_at=ends_at))
        counters.settle(held, (5, 0, 0))
        await told(counters)
        bucket_ms = await redis.pttl("{test:limits}:bucket:tokens")
        budget_s = await redis.ttl("{test:limits}:budget:budget")

        assert bucket_ms <= 51
        assert 86_400 < budget_s <= 2 * 86_400 + 100
        async with asyncio.timeout(PATIENT_S):
            while await redis.exists("{test:limits}:bucket:tokens"):
                await asyncio.sleep(0.005)
        kept = {key.decode().removeprefix("{test:limits}:") for key in await redis.keys()}
        assert kept == {"budget:budget", "replicas", "connections"}


_WANTS = st.lists(
    st.one_of(
        st.builds(Rate, st.just("r1"), st.just(1), st.just(7), st.sampled_from([0, 1, 3, 900])),
        st.builds(Rate, st.just("r2"), st.just(2), st.just(1000), st.sampled_from([0, 1, 400, 900])),
        st.builds(Slots, st.sampled_from(["s1", "s2"]), st.sampled_from([1, 2, 5])),
        st.builds(
            Spend,
            st.sampled_from(["b1", "b2"]),
            st.sampled_from([1000, 5_000_000, 2**53 * 1000]),
            st.sampled_from([0, 1000, 2_000_000, 9_000_000]),
        ),
    ),
    max_size=4,
    unique_by=lambda want: want.key,
).map(tuple)
_USED = st.sampled_from([0, 1000, 3_000_000])


@pytest.fixture
async def any_server() -> AsyncIterator[RedisServer]:
    """Whichever is installed."""
    async with RedisServer() as server:
        yield server


async def test_reserve_and_settle_any_order_counts_as_memory_does(any_server: RedisServer) -> None:
    """Random wants of three processes, settled in random order, with every answer compared."""
    steps = st.lists(st.tuples(st.integers(0, 2), _WANTS, st.none() | st.integers(0, 9), st.lists(_USED)), max_size=25)
    async with (
        Redis.from_url(any_server.url) as redis,
        counting(any_server.url) as one,
        counting(any_server.url) as two,
        counting(any_server.url) as three,
    ):
        loop = asyncio.get_running_loop()

        async def run(commands: list[tuple[int, tuple[Want, ...], int | None, list[int]]]) -> None:
            for pattern in ("bucket", "slots", "budget", "holds"):
                for key in await redis.keys(f"{{test:limits}}:{pattern}:*"):
                    await redis.delete(key)
            model = MemoryCounters(SystemClock())
            under_way: list[tuple[RedisCounters, Hold, Hold]] = []
            for which, wants, settled, used in commands:
                counters = (one, two, three)[which]
                if settled is not None and settled < len(under_way):
                    asker, held, held_in_model = under_way.pop(settled)
                    amounts = [(used + [0] * 9)[i] for i in range(len(held.wants))]
                    asker.settle(held, amounts)
                    model.settle(held_in_model, amounts)
                    await told(asker)
                answer, expected = await counters.reserve(wants), await model.reserve(wants)
                assert isinstance(answer, Hold) == isinstance(expected, Hold), (answer, expected)
                if isinstance(answer, Hold) and isinstance(expected, Hold):
                    assert answer.left == expected.left
                    under_way.append((counters, answer, expected))
                elif isinstance(answer, Full) and isinstance(expected, Full):
                    assert (answer.index, answer.left) == (expected.index, expected.left)
                    assert answer.retry_after_s == pytest.approx(expected.retry_after_s, abs=0.5)
                assert await counters.spent(["b1", "b2"]) == await model.spent(["b1", "b2"])
            for asker, held, _ in under_way:
                asker.settle(held, [0] * len(held.wants))
                await told(asker)

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(steps)
        def check(commands: list[tuple[int, tuple[Want, ...], int | None, list[int]]]) -> None:
            asyncio.run_coroutine_threadsafe(run(commands), loop).result()

        await asyncio.to_thread(check)
