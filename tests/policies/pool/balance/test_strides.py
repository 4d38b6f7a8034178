"""Turns among more members than are looked at for each call."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from policies.pool.balance.by_weight import Balancer
from policies.pool.balance.share import Share
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.policy.places import Numbered, make_place
from tests.support.policy.pool import StoppedClock

MANY = 300


def _balancer(weights: list[int]) -> tuple[Numbered, list[CircuitBreaker]]:
    policy = CircuitBreakerPolicy.model_validate({"consecutive_failures": 1})
    breakers = [CircuitBreaker(policy, StoppedClock()) for _ in weights]
    places = [make_place(number, breaker) for number, breaker in enumerate(breakers)]
    shares = [Share(place, weight, 0) for place, weight in zip(places, weights, strict=True)]
    return Numbered(places, Balancer(shares)), breakers


def _open(breaker: CircuitBreaker) -> None:
    breaker.fail(breaker.begin())


def test_many_of_one_weight_take_turns() -> None:
    """Each once before anybody comes again."""
    balancer, _ = _balancer([1] * MANY)
    chosen = [balancer.choose() for _ in range(2 * MANY)]

    assert chosen == [*range(MANY), *range(MANY)]


def test_many_of_different_weights_get_exact_shares() -> None:
    """Over whole cycles, and a heavy member's turns do not come in one block."""
    weights = [1 + index % 7 for index in range(MANY)]
    balancer, _ = _balancer(weights)
    chosen = [balancer.choose() for _ in range(3 * sum(weights))]

    assert Counter(chosen) == {index: 3 * weight for index, weight in enumerate(weights)}
    assert all(first != second for first, second in pairwise(chosen))


def test_many_without_those_that_are_out_or_tried() -> None:
    """Both are passed over; who was tried by one call keeps its turn for the next."""
    balancer, breakers = _balancer([1] * MANY)
    for breaker in breakers[10:]:
        _open(breaker)
    first = balancer.choose({0, 1})
    chosen = [balancer.choose() for _ in range(9)]

    assert first == 2
    assert chosen == [0, 1, *range(3, 10)]
    assert balancer.choose(set(range(10))) is None


def test_many_who_comes_back_takes_its_turn_again_and_no_more() -> None:
    """The turns that it missed are not made up for."""
    balancer, breakers = _balancer([1] * MANY)
    ticket = breakers[5].begin()
    breakers[5].fail(ticket)
    for _ in range(3 * (MANY - 1)):
        balancer.choose()
    breakers[5].mark_down(0.0)
    breakers[5].mark_up()
    chosen = Counter(balancer.choose(()) for _ in range(4 * MANY))

    assert chosen[5] <= 5
    assert set(chosen) >= set(range(MANY)) - {5}
