"""Whether two lists of outcomes can come from one distribution."""

from __future__ import annotations

import math
from collections import Counter
from typing import TypeVar

_LEAST_EXPECTED = 5
Outcome = TypeVar("Outcome")


def p_of(one: Counter[Outcome], two: Counter[Outcome]) -> tuple[float, int]:
    """The probability of as great a difference by chance, by chi-square, and its degrees of freedom.

    Outcomes that are too rare for that are counted together.
    """
    share = one.total() / (one.total() + two.total())
    cells: list[tuple[int, int]] = []
    rare = (0, 0)
    for outcome in one | two:
        both = one[outcome] + two[outcome]
        if both * min(share, 1 - share) >= _LEAST_EXPECTED:
            cells.append((one[outcome], two[outcome]))
        else:
            rare = rare[0] + one[outcome], rare[1] + two[outcome]
    if sum(rare):
        cells.append(rare)
    statistic = sum(
        (count - (count + other) * share) ** 2 / ((count + other) * share * (1 - share)) for count, other in cells
    )
    freedom = len(cells) - 1
    # Wilson and Hilferty, 1931: the cube root is nearly normal.
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2)), freedom
