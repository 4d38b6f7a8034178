"""Counts of what a route's batching has done: plain integers, from which metrics are made when they are scraped."""

from __future__ import annotations

from collections import Counter

import msgspec

MAX_KEPT = 1000
"""So many sizes and waits are kept between two scrapes."""


class BatchingCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a period. `sizes` (inputs) and `waits` (seconds) hold the first `MAX_KEPT` of it."""

    calls: Counter[str]
    splits: Counter[str]
    overdue: int
    sizes: list[int]
    waits: list[float]


class BatchingTally:
    """Counts until `take`: `calls` by how each was answered, `splits` by why a batch was split."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.calls: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.overdue = 0
        self._sizes: list[int] = []
        self._waits: list[float] = []

    def sent(self, size: int) -> None:
        """Count an upstream call with so many inputs."""
        if len(self._sizes) < MAX_KEPT:
            self._sizes.append(size)

    def waited(self, seconds: float) -> None:
        """Count how long a call has waited before it was sent."""
        if len(self._waits) < MAX_KEPT:
            self._waits.append(seconds)

    def take(self) -> BatchingCounts:
        """The counts so far; they start again at zero."""
        taken = BatchingCounts(
            calls=self.calls, splits=self.splits, overdue=self.overdue, sizes=self._sizes, waits=self._waits
        )
        self._begin()
        return taken
