"""A longer run of mixed load, left out of the suite; `python -m tests.benchmarks.soak` is the same with a report."""

from __future__ import annotations

import pytest

from tests.benchmarks import soak


async def test_soak_of_a_few_seconds_leaves_nothing_running() -> None:
    """Calls that end in every way leave no call in flight, and no connection but those that are kept."""
    outcome = await soak.measure(3, seed=2)

    assert outcome.problems == []
    assert outcome.in_flight_after == 0
    assert outcome.files_after <= outcome.files_before + 20


@pytest.mark.long
async def test_soak_of_a_minute_does_not_grow() -> None:
    """Memory is flat after the warm-up."""
    outcome = await soak.measure(60, seed=2)

    assert outcome.slope_mib_per_min <= 1
