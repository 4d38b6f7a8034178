"""How many replicas a pool's samples are worth, and how long they leave."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from policies.pool.load.scaling import DOWN_AFTER_S, UP_AFTER_S, PoolSample, Scaling

STEP_S = 5.0


def _watch(scaling: Scaling, seconds: float, *, since: float = 0.0, **seen: float) -> float:
    """The same sight for so long; the moment after it."""
    at = since
    while at <= since + seconds:
        scaling.add(
            PoolSample(
                at,
                seen.get("prefill", 0.0),
                seen.get("memory", 0.0),
                seen.get("shed", 0.0),
                seen.get("backlog_s", 0.0),
            )
        )
        at += STEP_S
    return at


def test_scaling_up_after_half_a_minute_of_need_and_not_before() -> None:
    """A burst is no reason for another replica; half a minute is."""
    scaling = Scaling(4, 2.0)
    at = _watch(scaling, UP_AFTER_S - STEP_S, prefill=6.0)
    assert scaling.desired_replicas() == 4
    _watch(scaling, STEP_S, since=at, prefill=6.0)
    assert scaling.desired_replicas() == 8


def test_scaling_up_after_a_break_in_the_need_begins_anew() -> None:
    """One look at which the replicas were enough, and the half minute starts again."""
    scaling = Scaling(4, 2.0)
    at = _watch(scaling, UP_AFTER_S - STEP_S, prefill=6.0)
    at = _watch(scaling, 0.0, since=at, prefill=1.0)
    _watch(scaling, UP_AFTER_S - 2 * STEP_S, since=at, prefill=6.0)
    assert scaling.desired_replicas() == 4


def test_scaling_down_after_five_minutes_keeps_what_the_worst_of_them_needed() -> None:
    """Never fewer than what the busiest look of the window was worth, and never none."""
    scaling = Scaling(8, 2.0)
    at = _watch(scaling, 0.0, memory=3.4)
    _watch(scaling, DOWN_AFTER_S - 2 * STEP_S, since=at, prefill=0.3)
    assert scaling.desired_replicas() == 8
    at = _watch(scaling, STEP_S, since=at + DOWN_AFTER_S - 2 * STEP_S, prefill=0.3)
    assert scaling.desired_replicas() == 4
    _watch(scaling, DOWN_AFTER_S, since=at)
    assert scaling.desired_replicas() == 1


def test_scaling_of_a_pool_that_sheds_asks_for_more() -> None:
    """A tenth turned away is a fifth more replicas."""
    scaling = Scaling(10, 2.0)
    _watch(scaling, UP_AFTER_S, shed=0.1)
    assert scaling.desired_replicas() == 12


def test_time_to_breach_of_a_growing_backlog_is_when_it_reaches_the_limit() -> None:
    """Growing 10 ms a second from 0.5 s, a limit of 2 s is reached when 1.2 s are left to grow."""
    scaling = Scaling(4, 2.0)
    for step in range(7):
        scaling.add(PoolSample(step * STEP_S, 0, 0, 0, 0.5 + 0.01 * step * STEP_S))
    assert math.isclose(scaling.time_to_breach_s(), (2.0 - 0.8) / 0.01)


def test_time_to_breach_of_a_backlog_over_the_limit_is_now_and_of_a_shrinking_one_never() -> None:
    """Nothing seen is nothing to fear."""
    scaling = Scaling(4, 2.0)
    assert scaling.time_to_breach_s() == math.inf
    _watch(scaling, UP_AFTER_S, backlog_s=1.0)
    assert scaling.time_to_breach_s() == math.inf
    scaling.add(PoolSample(100.0, 0, 0, 0, 2.5))
    assert scaling.time_to_breach_s() == 0.0


@given(
    st.integers(1, 64),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 1), st.floats(0, 100)), max_size=200),
)
def test_scaling_of_any_samples_stays_between_one_and_what_was_needed(
    replicas: int, seen: list[tuple[float, float, float, float]]
) -> None:
    """Never below one, never above the most that any look was worth, and times are not negative."""
    scaling = Scaling(replicas, 2.0)
    most = float(replicas)
    for step, (prefill, memory, shed, backlog_s) in enumerate(seen):
        scaling.add(PoolSample(step * STEP_S, prefill, memory, shed, backlog_s))
        most = max(most, prefill / 0.75, memory / 0.85, replicas * (1 + 2 * shed))
        assert 1 <= scaling.desired_replicas() <= math.ceil(most)
        assert scaling.time_to_breach_s() >= 0
