"""How well a number tells two groups apart: the area under the ROC curve, with its limits."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

_DEVIATIONS = 1.959964
_STEPS = 60


class Auc(NamedTuple):
    """The chance that one of the first group is less than one of the second, ties by half; 0.5 tells nothing.

    `lower` and `upper` are its 95 % limits.
    """

    value: float
    lower: float
    upper: float

    def tells(self, tolerance: float) -> bool:
        """Whether it is sure to be further than that from 0.5, whichever way."""
        return self.lower > 0.5 + tolerance or self.upper < 0.5 - tolerance


def area(first: Sequence[float], second: Sequence[float]) -> Auc:
    """The area of two groups that have somebody in them.

    Limits: Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic", part 2
    (Statistics in Medicine 25, 2006), method 5, which has some width even where the groups do not overlap.
    """
    ordered = sorted(second)
    wins = 0.0
    for each in first:
        left, right = bisect_left(ordered, each), bisect_right(ordered, each)
        wins += len(ordered) - right + (right - left) / 2
    value = wins / (len(first) * len(second))
    return Auc(value, _limit(value, len(first), len(second), 0.0), _limit(value, len(first), len(second), 1.0))


def _limit(value: float, num_first: int, num_second: int, end: float) -> float:
    """The area nearest to `end` from which the one that was seen is no further than chance allows."""

    def is_near(limit: float) -> bool:
        half = (num_first + num_second) / 2 - 1
        spread = 1 + half * ((1 - limit) / (2 - limit) + limit / (1 + limit))
        variance = limit * (1 - limit) * spread / (num_first * num_second)
        return abs(value - limit) <= _DEVIATIONS * math.sqrt(variance)

    return _bisect(is_near, value, end)


def _bisect(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where between the two it ceases to hold."""
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return (inside + outside) / 2
