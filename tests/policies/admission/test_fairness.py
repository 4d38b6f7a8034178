"""Counters of what clients have had: fading, weights, and no more of them than is allowed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission.fairness import Counters

HALF_LIFE_S = 30.0
CHARGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 10**6), st.sampled_from([0.0, 0.5, 30.0, 600.0, 5000.0])),
    min_size=1,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(CHARGES)
def test_counters_stand_to_each_other_as_faded_sums_do(charges: list[tuple[str, int, float]]) -> None:
    """Each token counts half after a half-life, divided by its client's weight, over every change of era."""
    weights = {"a": 4.0}
    counters = Counters(HALF_LIFE_S, weights)
    had: list[tuple[str, float, float]] = []
    now = 0.0
    for client, tokens, pause_s in charges:
        now += pause_s
        counters.charge(client, tokens, now)
        had.append((client, tokens / weights.get(client, 1.0), now))

    faded = {name: sum(n * 0.5 ** ((now - at) / HALF_LIFE_S) for who, n, at in had if who == name) for name in "abc"}
    total, counted = math.fsum(faded.values()), math.fsum(counters.of(name) for name in "abc")
    for name in "abc":
        assert counters.of(name) / counted == pytest.approx(faded[name] / total, rel=1e-9, abs=1e-12)


def test_counters_who_is_charged_first_after_a_long_time_has_no_old_debt() -> None:
    """The numbers that have grown too large are made smaller for whoever is charged in that moment, too."""
    counters = Counters(1.0, {})
    counters.charge("old", 100, 0.0)
    counters.charge("old", 1, 1000.0)
    counters.charge("new", 2, 1000.0)

    assert counters.era == 1
    assert counters.of("old") == pytest.approx(1.0)
    assert counters.of("new") > counters.of("old")


def test_counters_lift_raises_and_never_lowers() -> None:
    """Whoever comes back begins where the others are, or higher up where it stood."""
    counters = Counters(HALF_LIFE_S, {})
    counters.charge("had", 50, 0.0)
    counters.lift("had", 20.0)
    counters.lift("new", 20.0)

    assert counters.of("had") == 50.0
    assert counters.of("new") == 20.0


def test_counters_of_invented_clients_stay_within_their_bound() -> None:
    """Names that are made up for each call push out those not charged for longest, lifted or charged."""
    counters = Counters(HALF_LIFE_S, {})
    lifted = [f"lifted-{number}" for number in range(12_000)]
    charged = [f"charged-{number}" for number in range(12_000)]
    for name in lifted:
        counters.lift(name, 5.0)
    assert sum(counters.of(name) > 0 for name in lifted) == 10_000
    for name in charged:
        counters.charge("busy", 1, 0.0)
        counters.charge(name, 5, 0.0)

    assert sum(counters.of(name) > 0 for name in lifted) == 0
    assert sum(counters.of(name) > 0 for name in charged) == 9_999
    assert counters.of("busy") > 0
