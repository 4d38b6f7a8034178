"""What every store of limits and budgets does: all wants or none, exact under any order, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from backends.clock import SystemClock
from policies.limits.counters import Full, Hold, Rate, Slots, Spend, UsageCounters, Want
from policies.limits.memory import MemoryCounters
from tests.support.policy.limits import counting
from tests.support.servers.redis_server import RedisServer


@pytest.fixture(params=["memory", "redis"])
async def counters(request: pytest.FixtureRequest) -> AsyncIterator[UsageCounters]:
    """An empty store of each kind."""
    async with AsyncExitStack() as stack:
        if request.param == "redis":
            server = await stack.enter_async_context(RedisServer())
            yield await stack.enter_async_context(counting(server.url))
        else:
            store = MemoryCounters(SystemClock())
            await store.open()
            yield store
            await store.aclose()


async def held(counters: UsageCounters, *wants: Want) -> Hold:
    """What a call gets that gets what it wants."""
    answer = await counters.reserve(wants)
    assert isinstance(answer, Hold), answer
    return answer


async def refused(counters: UsageCounters, *wants: Want) -> Full:
    """Why one gets nothing."""
    answer = await counters.reserve(wants)
    assert isinstance(answer, Full), answer
    return answer


@pytest.mark.timed
async def test_a_bucket_gives_what_it_has_and_says_when_there_is_more(counters: UsageCounters) -> None:
    """Ten at once, then one a second."""
    one = Rate("r", 60, 10, 1)
    for rest in range(9, -1, -1):
        hold = await held(counters, one)
        assert hold.left == (rest,)
        counters.settle(hold, [1])
    full = await refused(counters, one)
    assert full.index == 0
    assert full.retry_after_s is not None
    assert -0.01 <= 1.0 - full.retry_after_s < 0.2
    assert full.left == (0,)


@pytest.mark.timed
async def test_a_bucket_is_settled_with_what_was_used_below_zero_too(counters: UsageCounters) -> None:
    """600 a minute are ten a second: 40 below zero are there again in five seconds."""
    hold = await held(counters, Rate("t", 600, 100, 60))
    counters.settle(hold, [140])
    full = await refused(counters, Rate("t", 600, 100, 10))
    assert full.retry_after_s is not None
    assert -0.01 <= 5.0 - full.retry_after_s < 0.3
    assert full.left[0] in (-40, -39)


async def test_what_was_not_used_comes_back_up_to_the_capacity(counters: UsageCounters) -> None:
    """A reservation that was too large is no loss."""
    hold = await held(counters, Rate("t", 60, 100, 80))
    counters.settle(hold, [5])
    assert (await held(counters, Rate("t", 60, 100, 0))).left[0] in (95, 96)


async def test_an_amount_above_the_capacity_is_cut_to_it(counters: UsageCounters) -> None:
    """A call that is larger than a burst waits for a full bucket, not for ever."""
    hold = await held(counters, Rate("t", 60, 100, 10_000))
    assert hold.left == (0,)
    counters.settle(hold, [10_000])
    full = await refused(counters, Rate("t", 60, 100, 10_000))
    assert full.retry_after_s == pytest.approx(10_000, abs=2)


async def test_slots_come_free_when_a_call_is_over(counters: UsageCounters) -> None:
    """Two at once."""
    first = await held(counters, Slots("c", 2))
    second = await held(counters, Slots("c", 2))
    assert (first.left, second.left) == ((1,), (0,))
    assert (await refused(counters, Slots("c", 2))).left == (0,)
    counters.settle(first, [0])
    third = await held(counters, Slots("c", 2))
    assert third.left == (0,)


async def test_a_call_gets_all_it_wants_or_nothing(counters: UsageCounters) -> None:
    """What stands before a want that does not fit is not taken."""
    await held(counters, Slots("last", 1))
    wants = (Rate("r", 60, 10, 1), Spend("b", 1000, 100), Slots("last", 1))
    for _ in range(20):
        full = await refused(counters, *wants)
        assert full.index == 2
        assert full.left == (10, 1000, 0)
    assert list(await counters.spent(["b"])) == [(0, 0)]


async def test_a_budget_is_used_to_its_end_and_overspent_by_at_most_one_call(counters: UsageCounters) -> None:
    """Beside others a call has to fit; alone it may be larger than what is left."""
    call = Spend("b", 1_000_000_000, 300_000_000)
    holds = [await held(counters, call) for _ in range(3)]
    assert holds[-1].left == (100_000_000,)
    full = await refused(counters, call)
    assert full.retry_after_s == pytest.approx(1.0)
    for hold in holds:
        counters.settle(hold, [250_000_000])
    alone = await held(counters, call)
    assert alone.left == (-50_000_000,)
    assert isinstance(await counters.reserve((call,)), Full)
    counters.settle(alone, [300_000_000])
    full = await refused(counters, call)
    assert full.retry_after_s is None
    assert list(await counters.spent(["b", "other"])) == [(1_050_000_000, 0), (0, 0)]


async def test_a_spent_budget_says_when_its_window_is_over(counters: UsageCounters) -> None:
    """And another window has its own counter."""
    ends_at = SystemClock().wall() + 3600
    counters.settle(await held(counters, Spend("b:1", 1000, 1000, ends_at)), [1000])
    full = await refused(counters, Spend("b:1", 1000, 1000, ends_at))
    assert full.retry_after_s == pytest.approx(3600, abs=5)
    await held(counters, Spend("b:2", 1000, 1000, ends_at + 3600))


async def test_bounds_are_those_of_each_call(counters: UsageCounters) -> None:
    """A reload that changes a limit changes no state."""
    await held(counters, Slots("c", 1))
    await refused(counters, Slots("c", 1))
    await held(counters, Slots("c", 2))
    hold = await held(counters, Spend("b", 2_000_000, 2_000_000))
    counters.settle(hold, [2_000_000])
    await refused(counters, Spend("b", 1_000_000, 1000))
    await held(counters, Spend("b", 3_000_000, 1000))


async def test_random_calls_spend_what_they_were_charged(counters: UsageCounters) -> None:
    """Many at once, in any order: the sums are those of the calls that were let in."""
    rng = random.Random(7)
    truth = 0
    most_over = 0

    async def call() -> None:
        nonlocal truth, most_over
        worst = rng.randrange(1_000_000, 50_000_000, 1000)
        answer = await counters.reserve((Spend("b", 1_000_000_000, worst), Slots("c", 5)))
        if isinstance(answer, Full):
            return
        await asyncio.sleep(rng.random() * 0.005)
        cost = rng.randrange(0, worst, 1000)
        truth += cost
        most_over = max(most_over, worst)
        counters.settle(answer, [cost, 0])

    for _ in range(40):
        await asyncio.gather(*(call() for _ in range(10)))
    for _ in range(200):
        spent, left_behind = (await counters.spent(["b"]))[0]
        if (spent, left_behind) == (truth, 0):
            break
        await asyncio.sleep(0.01)
    assert (spent, left_behind) == (truth, 0)
    assert truth <= 1_000_000_000 + most_over
    assert (await held(counters, Slots("c", 5))).left == (4,)
