"""The share of proposals that come true, as it is learned."""

from __future__ import annotations

import random

import pytest

from backends.engine.speculation.acceptance import Acceptance


@pytest.mark.parametrize("truth", [0.2, 0.6, 0.95])
def test_acceptance_of_simulated_drafts_finds_the_rate(truth: float) -> None:
    """Drafts behind the first rejected one do not count, or the rate would come out too low."""
    rng = random.Random(2)
    acceptance = Acceptance(0.5, 0.005)
    for _ in range(3000):
        num_accepted = 0
        while num_accepted < 4 and rng.random() < truth:
            num_accepted += 1
        acceptance.add(4, num_accepted)

    assert acceptance.rate == pytest.approx(truth, abs=0.07)
