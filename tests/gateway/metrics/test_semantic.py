"""What the metrics of the semantic cache make of several decisions' states."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from gateway.metrics.semantic import rates_of
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.verified import Verified
from tests.support.policy.semantic_traffic import drive, steep


def test_rate_of_one_decision_does_not_fade_with_its_age() -> None:
    """It is of the latest look-ups, and those before them make it no smaller."""
    decider = Verified(Bound(), Random(1))
    drive(decider, steep, 5000, Random(2))
    state = decider.state()

    assert state.lookups == 5000
    assert rates_of([state]) == (state.wrong_hit_rate, state.wrong_hit_rate_upper)
    assert state.wrong_hit_rate > state.spent / 5000


def test_rate_of_many_is_that_of_all_their_lookups() -> None:
    """Each counts by how much it is asked; nothing asked is no rate."""
    state = Verified(Bound(), Random(1)).state()
    busy = msgspec.structs.replace(state, lookups=9000, wrong_hit_rate=0.002, wrong_hit_rate_upper=0.003)
    idle = msgspec.structs.replace(state, lookups=1000, wrong_hit_rate=0.012, wrong_hit_rate_upper=0.023)

    assert rates_of([busy, idle]) == pytest.approx((0.003, 0.005))
    assert rates_of([state, state]) == (0.0, 0.0)
