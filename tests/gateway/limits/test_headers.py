"""What clients are told of their limits is true."""

from __future__ import annotations

import pytest

from gateway.limits.headers import rate_headers
from policies.limits.plan import AskPlan, RatePlace


def plan_of(*rates: RatePlace) -> AskPlan:
    """One that asks for tokens only."""
    return AskPlan(asks=(), wants=(), used=(), tokens=(), dollars=(), budgets=(), rates=(("tokens", rates),))


@pytest.mark.parametrize(
    ("left", "remaining", "reset"), [(8000, b"8000", b"0ms"), (500, b"500", b"4s"), (-22_000, b"0", b"18s")]
)
def test_tokens_that_are_missing_are_waited_for(left: int, remaining: bytes, reset: bytes) -> None:
    """A bucket below zero has nothing, and is full again that much later."""
    plan = plan_of(RatePlace(0, 8000, 60 / 100_000, b"100000"))

    assert rate_headers(plan, (left,)) == [
        (b"x-ratelimit-limit-tokens", b"100000"),
        (b"x-ratelimit-remaining-tokens", remaining),
        (b"x-ratelimit-reset-tokens", reset),
    ]


def test_the_rule_that_lacks_most_is_told_of() -> None:
    """Of two rules for the same kind."""
    plan = plan_of(RatePlace(0, 60, 60 / 600, b"600"), RatePlace(1, 6000, 60 / 60_000, b"60000"))

    assert rate_headers(plan, (30, -6000))[0] == (b"x-ratelimit-limit-tokens", b"60000")
    assert rate_headers(plan, (-61, -6000))[0] == (b"x-ratelimit-limit-tokens", b"600")
