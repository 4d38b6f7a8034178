"""Limits of counted shares: they hold what they promise, at the ends too."""

from __future__ import annotations

from random import Random

import pytest

from policies.shares import limits_of_share


@pytest.mark.parametrize("share", [0.01, 0.3, 0.95])
def test_limits_hold_the_share_nineteen_times_in_twenty(share: float) -> None:
    """Of 500 samples of 200 each."""
    random = Random(7)
    held = 0
    for _ in range(500):
        low, high = limits_of_share(sum(random.random() < share for _ in range(200)), 200)
        held += low <= share <= high
    assert 0.92 <= held / 500 <= 0.985


@pytest.mark.parametrize(("number", "of"), [(0, 1), (1, 1), (0, 1000), (1000, 1000)])
def test_limits_stay_within_what_a_share_can_be(number: int, of: int) -> None:
    """None and all say something too."""
    low, high = limits_of_share(number, of)
    assert 0.0 <= low < high <= 1.0
    assert low <= number / of <= high
