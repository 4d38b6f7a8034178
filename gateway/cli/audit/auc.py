"""How well a number separates two groups: the area under the ROC curve, with its confidence limits."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

_DEVIATIONS = 1.959964
_STEPS = 60


class Auc(NamedTuple):
    """The probability that a value of the first group is less than one of the second, where ties count half.

    At 0.5 the value does not separate the groups at all. `lower` and `upper` are the 95 % confidence limits.
    """

    value: float
    lower: float
    upper: float

    def separates(self, tolerance: float) -> bool:
        """Whether its confidence interval lies beyond that distance from 0.5, on either side."""
        return self.lower > 0.5 + tolerance or self.upper < 0.5 - tolerance


def area(first: Sequence[float], second: Sequence[float]) -> Auc:
    """The area under the curve of two groups, neither of which may be empty.

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
    """The confidence limit on the side of `end`: the furthest area that still explains the observed one."""

    def is_near(limit: float) -> bool:
        half = (num_first + num_second) / 2 - 1
        spread = 1 + half * ((1 - limit) / (2 - limit) + limit / (1 + limit))
        variance = limit * (1 - limit) * spread / (num_first * num_second)
        return abs(value - limit) <= _DEVIATIONS * math.sqrt(variance)

    return _bisect(is_near, value, end)


def _bisect(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """The point between the two where the condition ceases to hold."""
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return (inside + outside) / 2
