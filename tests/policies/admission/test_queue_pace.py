"""How long those who wait will take: what was sent off lately, over the time in which somebody waited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission.queue_pace import QueuePace


def drained(rate: float, *, seconds: float = 20.0, start: float = 0.0) -> tuple[QueuePace, float]:
    """One that has sent off so many tokens a second, ten times a second; and when it is now."""
    drain = QueuePace()
    drain.resume(start)
    now = start
    for _ in range(int(10 * seconds)):
        now += 0.1
        drain.note(int(rate / 10), now)
    return drain, now


def test_queue_pace_that_has_seen_nothing_says_the_default() -> None:
    """Nothing is known before the first call has been sent off."""
    drain = QueuePace()
    drain.resume(5.0)

    assert drain.seconds_for(1000, 6.0, default=2.5) == 2.5


@given(st.integers(100, 100_000), st.integers(1, 1_000_000))
def test_queue_pace_steady_rate_is_found(rate: int, tokens: int) -> None:
    """Tokens over tokens a second, within the bounds of 0.05 and 300 s."""
    drain, now = drained(10 * (rate // 10))

    expected = min(max(tokens / (10 * (rate // 10)), 0.05), 300.0)
    assert drain.seconds_for(tokens, now, default=1.0) == pytest.approx(expected, rel=1e-6)


def test_queue_pace_time_in_which_nobody_waited_is_not_counted() -> None:
    """An hour of peace does not make the backends slow."""
    drain, now = drained(1000.0)
    drain.resume(now + 3600.0)

    assert drain.seconds_for(2000, now + 3600.0, default=1.0) == pytest.approx(2.0, rel=0.01)


def test_queue_pace_change_is_noticed_within_some_seconds() -> None:
    """After a backend is lost what was before soon counts little."""
    drain, now = drained(1000.0)
    for _ in range(150):
        now += 0.1
        drain.note(25, now)

    assert drain.seconds_for(1000, now, default=1.0) == pytest.approx(4.0, rel=0.35)


def test_queue_pace_standstill_makes_the_estimate_grow() -> None:
    """While somebody waits and nobody is sent off, it takes longer and longer."""
    drain, now = drained(1000.0)
    said = [drain.seconds_for(1000, now + pause_s, default=1.0) for pause_s in (1.0, 5.0, 20.0)]

    assert said == sorted(said)
    assert said[0] < 2.0
    assert said[-1] > 10.0
