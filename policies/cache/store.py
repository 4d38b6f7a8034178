"""The contract of stores of answers, which a test suite checks for each of them."""

from __future__ import annotations

from typing import Protocol

import msgspec

from policies.cache.entry import Entry


class StoreStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot of a store's counters.

    `entries` and `bytes` are what this process holds (for a shared store: what waits to be written). `errors` are
    failures of the store itself, `dropped` are answers that it did not take.
    """

    hits: int = 0
    misses: int = 0
    entries: int = 0
    bytes: int = 0
    errors: int = 0
    dropped: int = 0


class Store(Protocol):
    """Keeps answers for a limited time, within bounds. A store that is down raises nothing: each look-up is a miss."""

    async def open(self) -> None:
        """Acquire resources; called once before the first use. It does not wait for a store that is down."""

    async def aclose(self) -> None:
        """Release everything. Safe to call twice."""

    def get_nowait(self, key: bytes) -> Entry | None:
        """The answer if this process has it. None does not mean a miss: `get` may find it elsewhere."""

    async def get(self, key: bytes) -> Entry | None:
        """The answer, or None; waits no longer than the store's own limit."""

    def put(self, key: bytes, entry: Entry, ttl_s: float) -> None:
        """Store an answer for `ttl_s` seconds, without waiting. `get` finds it from now on, unless it was rejected."""

    def delete(self, key: bytes) -> None:
        """Have what is there deleted, without waiting. `get` does not find it from now on."""

    def wall(self) -> float:
        """Now, in seconds since the Unix epoch, as entries are dated; it does not jump while the process lives."""

    def statistics(self) -> StoreStatistics:
        """A snapshot of the counters."""
