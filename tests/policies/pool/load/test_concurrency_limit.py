"""How many calls a backend gets of which nothing better is known than how it took the last ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.load.concurrency_limit import ConcurrencyLimit


def served(limits: ConcurrencyLimit, rounds: int, *, slow_above: float) -> None:
    """Rounds of calls, as many as may go, at a backend that is in time up to so many; one follows each that ends."""
    now = 0.0
    for _ in range(rounds):
        sent_at, number = now, math.ceil(limits.limit)
        now += 1.0
        for _ in range(number):
            limits.observe(0.5 if number > slow_above else 0.0, number - 1, sent_at, now)


def test_concurrency_grows_by_one_a_full_round_and_settles_where_it_is_late() -> None:
    """Somewhat below what the backend can take at once, never far from it."""
    limits = ConcurrencyLimit()
    served(limits, 1, slow_above=30)
    assert 8.1 <= limits.limit <= 9.1
    served(limits, 10, slow_above=30)
    assert 14 < limits.limit < 20

    served(limits, 400, slow_above=30)
    seen = []
    for _ in range(50):
        served(limits, 1, slow_above=30)
        seen.append(limits.limit)
    assert min(seen) > 20
    assert max(seen) < 32


def test_concurrency_that_is_not_used_does_not_grow() -> None:
    """Four at once say nothing of nine."""
    limits = ConcurrencyLimit()
    for _ in range(100):
        limits.observe(0.0, 3, 0.0, 1.0)

    assert limits.limit == 8.0


def test_concurrency_one_late_round_counts_once() -> None:
    """What was sent before the limit changed says nothing of what came after."""
    limits = ConcurrencyLimit()
    for _ in range(8):
        limits.observe(1.0, 7, 1.0, 5.0)
    assert limits.limit == pytest.approx(8 * 0.85)

    limits.observe(1.0, 5, 5.5, 6.0)
    assert limits.limit == pytest.approx(8 * 0.85**2)


def test_concurrency_refusal_pauses_and_goes_below_what_was_there() -> None:
    """A 429 with five others in flight: less than six at once from now on, and none until it says."""
    limits = ConcurrencyLimit()
    limits.refused(5, 0.0, 10.0, 3.0)

    assert limits.has_refused
    assert limits.limit == pytest.approx(6 * 0.7)
    assert [limits.has_room(0, now) for now in (10.0, 12.9, 13.0)] == [False, False, True]
    assert limits.has_room(4, 13.0)
    assert not limits.has_room(5, 13.0)


@pytest.mark.parametrize(("asked_s", "paused_s"), [(None, 1.0), (0.0, 0.0), (1e9, 60.0)])
def test_concurrency_pause_is_what_was_asked_within_a_minute(asked_s: float | None, paused_s: float) -> None:
    """A second where nothing is said."""
    limits = ConcurrencyLimit()
    limits.refused(0, 0.0, 10.0, asked_s)

    assert limits.has_room(0, 10.0 + paused_s)
    assert not limits.has_room(0, 10.0 + paused_s - 1e-3)


OBSERVED = st.tuples(st.booleans(), st.floats(-1, 10), st.integers(0, 100), st.floats(0, 5), st.floats(0, 5))


@given(st.lists(OBSERVED, max_size=60))
def test_concurrency_always_lets_one_go_in_the_end(steps: list[tuple[bool, float, int, float, float]]) -> None:
    """Whatever it is told, the limit is at least one and no pause is longer than a minute."""
    limits, now = ConcurrencyLimit(), 0.0
    for is_refused, delay, in_flight, ago_s, later_s in steps:
        now += later_s
        if is_refused:
            limits.refused(in_flight, now - ago_s, now, delay if delay >= 0 else None)
        else:
            limits.observe(delay, in_flight, now - ago_s, now)
        assert 1.0 <= limits.limit <= 65_536.0
        assert limits.has_room(0, now + 60.0)
