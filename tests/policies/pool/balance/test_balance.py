"""Choosing among members by priority and weight."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.balance.by_weight import Balancer, max_ejected
from policies.pool.balance.share import Share
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.policy.places import Numbered, make_place
from tests.support.policy.pool import StoppedClock


def _balancer(*members: tuple[int, int], clock: StoppedClock | None = None) -> tuple[Numbered, list[CircuitBreaker]]:
    """Members as (weight, priority)."""
    policy = CircuitBreakerPolicy.model_validate({"consecutive_failures": 1})
    breakers = [CircuitBreaker(policy, clock or StoppedClock()) for _ in members]
    places = [make_place(number, breaker) for number, breaker in enumerate(breakers)]
    shares = [Share(place, weight, priority) for place, (weight, priority) in zip(places, members, strict=True)]
    return Numbered(places, Balancer(shares)), breakers


def _open(breaker: CircuitBreaker) -> None:
    breaker.fail(breaker.begin())


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any), st.integers(1, 3))
def test_balancer_full_cycles_give_exact_shares(weights: list[int], cycles: int) -> None:
    """Over whole cycles every member gets precisely its weight, and none with weight 0 is chosen."""
    balancer, _ = _balancer(*((weight, 0) for weight in weights))
    chosen = Counter(balancer.choose() for _ in range(sum(weights) * cycles))

    assert chosen == {index: weight * cycles for index, weight in enumerate(weights) if weight}


def test_balancer_spreads_within_a_cycle() -> None:
    """A heavy member's turns do not come in one block."""
    balancer, _ = _balancer((3, 0), (1, 0))

    assert [balancer.choose() for _ in range(8)] == [0, 0, 1, 0, 0, 0, 1, 0]


def test_balancer_lowest_priority_that_is_available_wins() -> None:
    """The next priority is used only when nothing of the first can answer."""
    balancer, breakers = _balancer((1, 1), (1, 0), (5, 1))
    first = {balancer.choose() for _ in range(10)}
    _open(breakers[1])
    then = {balancer.choose() for _ in range(10)}

    assert (first, then) == ({1}, {0, 2})


def test_balancer_leaves_out_what_was_tried() -> None:
    """Members tried in this call are passed over, across priorities; None once all were."""
    balancer, _ = _balancer((1, 0), (1, 0), (1, 1))

    assert [balancer.choose({0}), balancer.choose({0, 1}), balancer.choose({0, 1, 2})] == [1, 2, None]


def test_balancer_says_when_a_member_comes_back() -> None:
    """With every breaker open the soonest half-open counts; without any weight there is no such time."""
    clock = StoppedClock()
    balancer, breakers = _balancer((1, 0), (1, 0), clock=clock)
    _open(breakers[0])
    clock.seconds += 4
    _open(breakers[1])

    assert balancer.choose() is None
    assert balancer.retry_in_s() == 6.0
    assert _balancer((0, 0))[0].retry_in_s() is None


@given(st.lists(st.tuples(st.integers(1, 9), st.sets(st.integers(0, 3))), max_size=60))
def test_balancer_never_chooses_what_is_excluded(turns: list[tuple[int, set[int]]]) -> None:
    """However the exclusions change from call to call, the choice is one of the rest."""
    balancer, _ = _balancer((9, 0), (3, 0), (1, 0), (1, 1))
    for _, tried in turns:
        chosen = balancer.choose(tried)

        assert (chosen is None) == (tried == {0, 1, 2, 3})
        assert chosen not in tried


@pytest.mark.parametrize(
    ("members", "percent", "expected"),
    [(1, 50, 0), (1, 100, 1), (2, 0, 1), (2, 50, 1), (3, 50, 1), (4, 50, 2), (10, 25, 2), (3, 100, 3)],
)
def test_max_ejected_is_a_share_but_one_if_there_are_others(members: int, percent: int, expected: int) -> None:
    """The share is rounded down, one may always be out, and a lone member only at 100 %."""
    assert max_ejected(members, percent) == expected
