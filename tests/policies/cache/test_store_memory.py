"""The store in memory: bounds, order of leaving, and age by the clock it is handed."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from backends.clock import SystemClock
from policies.cache.entry import AnswerForm, Entry
from policies.cache.store_memory import MemoryEntryStore
from tests.support.clock import FakeClock


def key(number: int) -> bytes:
    """A key."""
    return number.to_bytes(32, "big")


def entry(num_bytes: int, fill: bytes = b"x") -> Entry:
    """An entry with a body of that size."""
    return Entry(AnswerForm.JSON, fill * num_bytes, b"application/json", 0.0)


async def test_get_nowait_just_before_expiry_hits_and_at_expiry_misses(clock: FakeClock) -> None:
    """The time to live is counted on the monotonic clock, to its end; what is too old no longer takes room."""
    store = MemoryEntryStore(10_000, clock)
    store.put(key(1), entry(10), 60.0)

    await clock.advance(59.5)
    assert store.get_nowait(key(1)) is not None
    await clock.advance(0.5)
    assert store.get_nowait(key(1)) is None
    assert store.statistics().bytes == 0


async def test_put_over_the_limit_evicts_least_recently_used(clock: FakeClock) -> None:
    """What was asked for last stays."""
    store = MemoryEntryStore(3 * 2000, clock)
    for number in range(3):
        store.put(key(number), entry(1000), 60.0)
    await store.get(key(0))
    store.put(key(3), entry(1000), 60.0)

    assert [store.get_nowait(key(number)) is not None for number in range(4)] == [True, False, True, True]


def test_put_of_an_entry_larger_than_the_store_is_dropped(clock: FakeClock) -> None:
    """It would only drive everything else out; an older answer under its key goes all the same."""
    store = MemoryEntryStore(5000, clock)
    store.put(key(1), entry(10), 60.0)
    store.put(key(2), entry(10), 60.0)
    store.put(key(1), entry(5000), 60.0)

    assert store.get_nowait(key(1)) is None
    assert store.get_nowait(key(2)) is not None
    assert store.statistics().dropped == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000)), max_size=60))
def test_put_of_anything_keeps_count_and_bound(puts: list[tuple[int, int]]) -> None:
    """The bytes counted are those of the entries that are there, and never over the limit."""
    store = MemoryEntryStore(8000, SystemClock())
    for number, num_bytes in puts:
        store.put(key(number), entry(num_bytes), 60.0)
        found = [kept for number in range(10) if (kept := store.get_nowait(key(number))) is not None]

        assert store.statistics().bytes == sum(len(kept.body) + 768 for kept in found) <= 8000
        assert store.statistics().entries == len(found)


def test_memory_of_small_entries_stays_within_what_is_counted() -> None:
    """The overhead that is counted is not less than what the entries really take."""
    store = MemoryEntryStore(4 * 1024**2, SystemClock())
    tracemalloc.start()
    for number in range(10_000):
        store.put(key(number), Entry(AnswerForm.JSON, b"%0100d" % number, b"application/json", float(number)), 60.0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert used <= store.statistics().bytes <= 4 * 1024**2
