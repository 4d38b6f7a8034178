"""A histogram that gets many observations at once, counted elsewhere without its locks.

`requests.py` counts requests by bucket in plain integers, and hands over the sums when somebody looks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import Histogram


class TalliedHistogram(Histogram):
    """One of prometheus_client's, which can also take in a tally; in its children, by their labels."""

    def add(self, numbers: Sequence[int], total: float) -> None:
        """So many more observations in each bucket, from the lowest to that without a bound, of that sum."""
        for bucket, number in zip(self._buckets, numbers, strict=True):
            if number:
                bucket.inc(number)
        self._sum.inc(total)


class HistogramTally:
    """Observations that no histogram has been told of yet."""

    __slots__ = ("_bounds", "_histogram", "_labels", "_numbers", "_total")

    def __init__(self, histogram: TalliedHistogram, labels: Sequence[str], bounds: Sequence[float]) -> None:
        """`bounds`: the histogram's own, without the infinite one."""
        self._histogram = histogram
        self._labels = labels
        self._bounds = bounds
        self._numbers = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        # A bound is part of the bucket below it.
        self._numbers[bisect_left(self._bounds, value)] += 1
        self._total += value

    def flush(self) -> None:
        """Tell the histogram, and begin anew. Its series begins with the first observation."""
        if any(self._numbers):
            numbers, self._numbers = self._numbers, [0] * len(self._numbers)
            total, self._total = self._total, 0.0
            self._histogram.labels(*self._labels).add(numbers, total)
