"""Between what a share may lie of which so many were counted."""

from __future__ import annotations

import math
from typing import NamedTuple

SURE = 1.96
"""Standard errors within which 95 % of all samples lie."""


class ShareLimits(NamedTuple):
    """0..1 each."""

    low: float
    high: float


def limits_of_share(number: int, of: int, sure: float = SURE) -> ShareLimits:
    """Of `number` among `of`, at least 1, so many standard errors away (Wilson, 1927; written from the formula)."""
    share, square = number / of, sure**2 / of
    half = sure * math.sqrt(share * (1 - share) / of + square / (4 * of))
    middle = share + square / 2
    return ShareLimits(max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square)))
