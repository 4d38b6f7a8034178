"""The error rate of the latest calls, against a list of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.pool.health.error_rate import ErrorRate

WINDOW_S = 8.0
_CALLS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0, 9.0]), st.booleans()), max_size=40)


@given(calls=_CALLS, share=st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_calls=st.integers(1, 6))
def test_error_rate_is_that_of_half_the_window_to_all_of_it(
    calls: list[tuple[float, bool]], share: float, min_calls: int
) -> None:
    """It says of each moment what the calls since some moment in the older half of the window say."""
    now = 100.0
    rate = ErrorRate(WINDOW_S)
    ended: list[tuple[float, bool]] = []
    for wait_s, has_failed in calls:
        now += wait_s
        rate.add(now, has_failed=has_failed)
        ended.append((now, has_failed))
        latest = [[failed for at, failed in ended if at >= start] for start in _starts(ended, now)]
        possible = {len(seen) >= min_calls and sum(seen) > share * len(seen) for seen in latest}

        assert rate.is_above(share, min_calls, now) in possible


def test_error_rate_forgets_what_is_older_than_its_window() -> None:
    """Failures of long ago say nothing; nor does anything once it is cleared."""
    rate = ErrorRate(WINDOW_S)
    for _ in range(10):
        rate.add(0.0, has_failed=True)
    at_once = rate.is_above(0.5, 10, 0.0)
    late = rate.is_above(0.5, 1, WINDOW_S + 0.1)
    rate.add(20.0, has_failed=True)
    rate.clear()

    assert (at_once, late, rate.is_above(0.5, 1, 20.0)) == (True, False, False)


def _starts(ended: list[tuple[float, bool]], now: float) -> set[float]:
    """Every moment from which on it may count, as far as that makes a difference."""
    bounds = {now - WINDOW_S, now - WINDOW_S / 2}
    return bounds | {at for at, _ in ended if now - WINDOW_S <= at <= now - WINDOW_S / 2}
