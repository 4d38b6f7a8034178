"""What is said of a semantic cache that only observes."""

from __future__ import annotations

import pytest

from gateway.dashboard.observed import observed

FIGURES = {
    "looked_up_would_hit": 310.0,
    "looked_up_no_candidate": 200.0,
    "looked_up_below_threshold": 490.0,
    "looked_up_learning": 900.0,
    "looked_up_volatile": 5000.0,
    "likely": 0.004,
    "at_most": 0.009,
}


def test_observed_is_told_of_look_ups_that_were_decided() -> None:
    """Not of those while it learned, nor of calls that are never looked up; with limits, and what would be wrong."""
    assert observed(FIGURES) == (
        "It only observes. In mode verified it would have answered 31.0 % of the 1,000 calls looked up since it had "
        "learned enough (28.2 % to 33.9 %), likely 0.40 % of all look-ups wrongly, at most 0.90 %."
    )


@pytest.mark.parametrize(
    "change",
    [
        {"looked_up_hit": 1.0},
        {"looked_up_would_hit": 0.0},
        {"looked_up_no_candidate": 0.0, "looked_up_would_hit": 9.0, "looked_up_below_threshold": 0.0},
    ],
)
def test_observed_says_nothing_where_it_serves_or_hardly_anything_is_known(change: dict[str, float]) -> None:
    """It has served, has nothing that it would have, or has decided too little."""
    assert observed(FIGURES | change) is None
    assert observed({}) is None
