"""UsageCounters in memory stay bounded, and what they forget says no more than its absence."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from policies.limits.counters import Full, Hold, Rate, Slots, Spend
from policies.limits.memory import MemoryCounters
from tests.support.clock import FakeClock

MOST = 100


def names(tenant: str, count: int, rule: str = "usd:runs") -> list[str]:
    """Keys of names that a client of a tenant chooses."""
    return [f"{rule}:{tenant}~{number:032x}:" for number in range(count)]


async def test_names_that_clients_invent_do_not_fill_the_memory() -> None:
    """Of 10,000 sessions at once, and of as many one after the other; what each has spent is never forgotten."""
    clock = FakeClock()
    counters = MemoryCounters(clock, MOST)
    keys = names("red", 10_000)
    holds = []
    for key in keys:
        answer = await counters.reserve(
            (Spend(key, 1000, 10), Slots(f"c:{key}", 1000), Rate(f"r:{key}", 6000, 6000, 1))
        )
        assert isinstance(answer, Hold)
        holds.append(answer)
    # Budgets are those of calls under way; slots and rates are shared.
    assert len(counters) <= 10_000 + MOST + 2 * 64
    for hold in holds:
        counters.settle(hold, [10, 0, 1])
    await clock.advance(60)
    for key in names("blue", 10_000):
        answer = await counters.reserve((Spend(key, 1000, 10),))
        assert isinstance(answer, Hold)
        counters.settle(answer, [10])
    assert len(counters) <= 2 * MOST
    assert all(spent >= 10 for spent, _ in await counters.spent(keys))
    assert all(spent <= 50 for spent, _ in await counters.spent(names("green", 1000)))


async def test_names_that_a_client_invents_lock_out_nobody_else() -> None:
    """It holds all that there is for names; other tenants, and a month that begins, are counted by themselves."""
    clock = FakeClock()
    counters = MemoryCounters(clock, MOST)
    for key in names("red", 1000):
        wants = (Spend(key, 10, 10), Slots(f"c:red~{key}", 1), Rate(f"rpm:each:red~{key}", 1, 1, 1))
        await counters.reserve(wants)
    full = await counters.reserve((Slots("c:red~another", 1), Rate("rpm:each:red~another", 1, 1, 1)))
    assert isinstance(full, Full)
    for wants in (
        (Spend("usd:runs:blue~0:", 10, 10), Slots("c:blue~0", 1), Rate("rpm:each:blue~0", 1, 1, 1)),
        (Spend("usd:month:blue:2026-12-01", 10, 10), Slots("c:blue", 1), Rate("rpm:each:blue", 1, 1, 1)),
    ):
        answer = await counters.reserve(wants)
        assert isinstance(answer, Hold)
        counters.settle(answer, [10, 0, 1])


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=200),
    st.dictionaries(st.integers(0, 30), st.integers(1, 50), max_size=30),
)
async def test_names_have_spent_no_less_than_they_have(calls: list[tuple[int, int]], before: dict[int, int]) -> None:
    """With room for three of 31, in whichever order they come; what the ledger knows from before is in it too."""
    counters = MemoryCounters(FakeClock(), 3, salt=b"s")
    keys = names("red", 31)
    true = Counter({keys[who]: spent for who, spent in before.items()})
    for key, spent in true.items():
        counters.put_spent(key, spent, None)
    for who, spent in calls:
        answer = await counters.reserve((Spend(keys[who], 10**6, 5),))
        assert isinstance(answer, Hold)
        counters.settle(answer, [spent])
        true[keys[who]] += spent
    assert len(counters) <= 4
    for key, (spent, held) in zip(keys, await counters.spent(keys), strict=True):
        assert (spent, held) == (true[key], 0)


async def test_a_clock_that_is_a_day_ahead_for_a_while_forgets_no_window() -> None:
    """Set right again, what was spent today still is."""
    clock = FakeClock()
    counters = MemoryCounters(clock)
    ends_at = clock.wall() + 3600
    today, tomorrow = Spend("usd:d:a:1", 10, 1, ends_at), Spend("usd:d:a:2", 10**6, 1, ends_at + 86400)
    answer = await counters.reserve((today,))
    assert isinstance(answer, Hold)
    counters.settle(answer, [10])
    for shift_s in (86400.0, -86400.0, -3600.0):
        clock.jump(shift_s)
        for _ in range(100):
            answer = await counters.reserve((tomorrow,))
            assert isinstance(answer, Hold)
            counters.settle(answer, [1])
        assert isinstance(await counters.reserve((today,)), Full)
    clock.jump(86400.0)
    for _ in range(100):
        await clock.advance(60)
        answer = await counters.reserve((tomorrow,))
        assert isinstance(answer, Hold)
        counters.settle(answer, [1])
    assert len(counters) == 1


async def test_full_buckets_free_slots_and_windows_long_over_are_forgotten() -> None:
    """An hour after a look at what is over only what still matters is there."""
    clock = FakeClock()
    counters = MemoryCounters(clock)
    for number in range(1000):
        ends_at = clock.wall() + 60
        wants = (Rate(f"rpm:{number}", 60, 10, 1), Slots(f"c:{number}", 1), Spend(f"usd:{number}", 10, 1, ends_at))
        answer = await counters.reserve(wants)
        assert isinstance(answer, Hold)
        counters.settle(answer, [1, 0, 1])
    for _ in range(2):
        await clock.advance(3700)
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
