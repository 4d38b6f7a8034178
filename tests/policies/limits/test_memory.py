"""UsageCounters in memory stay bounded, and what they forget says no more than its absence."""

from __future__ import annotations

from policies.limits.counters import Full, Hold, Rate, Slots, Spend
from policies.limits.memory import MemoryCounters
from tests.support.clock import FakeClock

MOST = 100


async def test_names_that_clients_invent_do_not_fill_the_memory() -> None:
    """Calls of 10,000 sessions at once; those beyond the bound share counters, which stop early and never late."""
    clock = FakeClock()
    counters = MemoryCounters(clock, MOST)
    holds = []
    for number in range(10_000):
        answer = await counters.reserve((Spend(f"usd:{number}", 1000, 10), Slots(f"at once:{number}", 1000)))
        assert isinstance(answer, Hold)
        holds.append(answer)
    assert len(counters) <= MOST + 2 * 4096
    for hold in holds:
        counters.settle(hold, [10, 0])
    shared = await counters.spent([f"#Spend{number}" for number in range(4096)])
    alone = await counters.spent([f"usd:{number}" for number in range(10_000)])
    assert sum(spent for spent, _ in [*shared, *alone]) == 100_000
    assert all(held == 0 for _, held in [*shared, *alone])


async def test_full_buckets_free_slots_and_windows_long_over_are_forgotten() -> None:
    """A day later only what still matters is there."""
    clock = FakeClock()
    counters = MemoryCounters(clock)
    for number in range(1000):
        ends_at = clock.wall() + 60
        wants = (Rate(f"rpm:{number}", 60, 10, 1), Slots(f"c:{number}", 1), Spend(f"usd:{number}", 10, 1, ends_at))
        answer = await counters.reserve(wants)
        assert isinstance(answer, Hold)
        counters.settle(answer, [1, 0, 1])
    await clock.advance(86400)
    for _ in range(1000):
        answer = await counters.reserve((Spend("total", 10_000, 1),))
        assert isinstance(answer, Hold)
        counters.settle(answer, [1])
    assert len(counters) == 1


async def test_a_bucket_fills_with_time_and_no_further_than_its_capacity() -> None:
    """Sixty a minute."""
    clock = FakeClock()
    counters = MemoryCounters(clock)
    want = Rate("r", 60, 5, 1)
    admitted = 0
    for _ in range(600):
        for _ in range(3):
            answer = await counters.reserve((want,))
            if isinstance(answer, Hold):
                admitted += 1
                counters.settle(answer, [1])
            else:
                assert isinstance(answer, Full)
                assert answer.retry_after_s is not None
                assert 0 < answer.retry_after_s <= 1
        await clock.advance(1)
    assert admitted == 600 + 4
