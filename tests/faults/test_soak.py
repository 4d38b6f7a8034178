"""A short run of mixed load; `python -m tests.benchmarks.faults.soak` is the long one, with a report."""

from __future__ import annotations

from tests.benchmarks.faults import soak


async def test_soak_of_a_few_seconds_leaves_nothing_running() -> None:
    """Calls that end in every way leave no call in flight, and no connection but those that are kept."""
    outcome = await soak.measure(3, seed=2)

    assert outcome.problems == []
    assert outcome.in_flight_after == 0
    assert outcome.files_after <= outcome.files_before + 20
