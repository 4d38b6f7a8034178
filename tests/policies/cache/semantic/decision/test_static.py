"""The static decision: a number, and counts of what it costs."""

from __future__ import annotations

import math
from random import Random

import pytest

from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.static import SHADOW_PROBABILITY, Static
from policies.cache.semantic.decision.verified import Verified
from tests.support.policy.semantic_traffic import candidate, drive, steep


def test_static_serves_from_its_threshold_on() -> None:
    """At it, and not under it, from the first request."""
    decider = Static(0.9, Random(1))

    at = decider.decide(decider.propose("a", [candidate(0.9)]))
    under = decider.decide(decider.propose("a", [candidate(0.8999)]))
    nothing = decider.decide(decider.propose("a", []))

    assert (at.serve, at.reason) == (True, "static")
    assert (under.serve, under.reason) == (False, "below_threshold")
    assert (nothing.serve, nothing.reason) == (False, "no_candidate")


def test_static_guard_refuses_other_numbers_where_it_is_a_veto() -> None:
    """As a feature it means nothing here."""
    near = [candidate(0.99, text="5 km")]

    veto, feature = Static(0.9, Random(1), guard="veto"), Static(0.9, Random(1))
    assert veto.decide(veto.propose("6 km", near)).reason == "guarded"
    assert feature.decide(feature.propose("6 km", near)).serve


def test_static_state_tells_what_the_number_costs() -> None:
    """Wrong answers are estimated from the few that are checked."""
    decider = Static(0.7, Random(4))
    seen = drive(decider, steep, 20_000, Random(5))
    state = decider.state()

    assert state.mode == "static"
    assert state.served == seen.hits
    assert abs(seen.shadows - SHADOW_PROBABILITY * seen.hits) < 5 * math.sqrt(SHADOW_PROBABILITY * seen.hits)
    assert 0.5 * seen.wrong < state.spent < 2 * seen.wrong
    assert state.wrong_hit_rate < state.wrong_hit_rate_upper


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.01, math.nan])
def test_static_absurd_threshold_is_refused(threshold: float) -> None:
    """A cosine above 0 and up to 1."""
    with pytest.raises(ValueError, match="threshold is"):
        Static(threshold, Random(1))


def test_static_dumped_and_loaded_has_the_same_counts() -> None:
    """What people look at survives a restart; the threshold is the configuration's."""
    first, second = Static(0.8, Random(1)), Static(0.8, Random(2))
    drive(first, steep, 500, Random(3))
    second.load(first.dump())

    assert second.state() == first.state()


def test_static_damaged_dump_is_refused() -> None:
    """Torn, flipped, or of another decision."""
    decider = Static(0.8, Random(1))
    good = decider.dump()

    for bad in (b"", good[:-1], good[:-1] + bytes([good[-1] ^ 1]), Verified(Bound(), Random(1)).dump()):
        with pytest.raises(ValueError):
            decider.load(bad)
