"""Stores answers in the memory of this process, bounded by bytes, with LRU eviction."""

from __future__ import annotations

from collections import OrderedDict

from backends.clock import Clock
from policies.cache.entry import Entry
from policies.cache.steady_wall import SteadyWallClock
from policies.cache.store import StoreStatistics

_OVERHEAD_BYTES = 768
"""Bytes of an entry besides its body, measured with tracemalloc and rounded up: key, objects, slot in the table."""


class MemoryEntryStore:
    """Keeps at most `max_bytes`, overhead included. Every operation takes constant time."""

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._wall = SteadyWallClock(clock)
        self._entries: OrderedDict[bytes, tuple[Entry, float]] = OrderedDict()
        self._num_bytes = 0
        self._hits = 0
        self._misses = 0
        self._dropped = 0

    async def open(self) -> None:
        """Does nothing: there is nothing to acquire."""

    async def aclose(self) -> None:
        """Drop all answers."""
        self._entries.clear()
        self._num_bytes = 0

    def get_nowait(self, key: bytes) -> Entry | None:
        """The answer, unless it is too old."""
        found = self._entries.get(key)
        if found is None:
            return None
        entry, expires_at = found
        if self._clock.now() >= expires_at:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        self._hits += 1
        return entry

    async def get(self, key: bytes) -> Entry | None:
        """Like `get_nowait`, but a miss is counted."""
        entry = self.get_nowait(key)
        if entry is None:
            self._misses += 1
        return entry

    def put(self, key: bytes, entry: Entry, ttl_s: float) -> None:
        """Store an answer and evict others if needed. An answer larger than the whole store is rejected."""
        self._remove(key)
        size = _size(entry)
        if size > self._max_bytes:
            self._dropped += 1
            return
        self._entries[key] = (entry, self._clock.now() + ttl_s)
        self._num_bytes += size
        while self._num_bytes > self._max_bytes:
            _, (oldest, _) = self._entries.popitem(last=False)
            self._num_bytes -= _size(oldest)

    def delete(self, key: bytes) -> None:
        """Drop an answer."""
        self._remove(key)

    def wall(self) -> float:
        """See `Store.wall`."""
        return self._wall()

    def statistics(self) -> StoreStatistics:
        """A snapshot of the counters."""
        return StoreStatistics(
            hits=self._hits,
            misses=self._misses,
            entries=len(self._entries),
            bytes=self._num_bytes,
            dropped=self._dropped,
        )

    def _remove(self, key: bytes) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._num_bytes -= _size(found[0])


def _size(entry: Entry) -> int:
    return len(entry.body) + _OVERHEAD_BYTES
