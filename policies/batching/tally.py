"""What a route's windows have done, in plain numbers that metrics are made of when somebody looks."""

from __future__ import annotations

from collections import Counter

import msgspec

MAX_KEPT = 1000
"""Sizes and waits kept until they are taken."""


class BatchingCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened since the last time it was taken: `sizes` in inputs, `waits` in seconds, both of the first."""

    calls: Counter[str]
    splits: Counter[str]
    overdue: int
    sizes: list[int]
    waits: list[float]


class BatchingTally:
    """Counts until it is taken. `calls` by how they went, `splits` by why a batch had to part."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.calls: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.overdue = 0
        self._sizes: list[int] = []
        self._waits: list[float] = []

    def sent(self, size: int) -> None:
        """An upstream call with so many inputs goes."""
        if len(self._sizes) < MAX_KEPT:
            self._sizes.append(size)

    def waited(self, seconds: float) -> None:
        """A call has waited for its answer, or for its turn."""
        if len(self._waits) < MAX_KEPT:
            self._waits.append(seconds)

    def take(self) -> BatchingCounts:
        """Everything so far; counting begins anew."""
        taken = BatchingCounts(
            calls=self.calls, splits=self.splits, overdue=self.overdue, sizes=self._sizes, waits=self._waits
        )
        self._begin()
        return taken
