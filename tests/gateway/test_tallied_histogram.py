"""Observations that are handed to a histogram in one step say the same as if each had been observed."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.metrics.tallied_histogram import HistogramTally, TalliedHistogram

BOUNDS = (0.1, 1.0, 10.0)
OBSERVED = [
    pytest.param([], id="none"),
    pytest.param([0.0, 0.05, 0.1], id="the lowest bucket and its bound"),
    pytest.param([0.1000001, 1.0, 9.5, 10.0], id="every bucket"),
    pytest.param([10.5, 1e9], id="above all bounds"),
]


def _exposed(registry: CollectorRegistry) -> str:
    lines = generate_latest(registry).decode().splitlines()
    return "\n".join(line for line in lines if "_created" not in line)


@pytest.mark.parametrize("observed", OBSERVED)
def test_tally_flushed_shows_what_single_observations_show(observed: list[float]) -> None:
    """Also over two flushes, the second of which has nothing new."""
    tallied, single = CollectorRegistry(), CollectorRegistry()
    tally = HistogramTally(TalliedHistogram("h", "of", ("route",), buckets=BOUNDS, registry=tallied), ("r",), BOUNDS)
    reference = Histogram("h", "of", ("route",), buckets=BOUNDS, registry=single)

    for at, value in enumerate(observed):
        tally.observe(value)
        if at == 1:
            tally.flush()
        reference.labels("r").observe(value)
    tally.flush()
    tally.flush()

    assert _exposed(tallied) == _exposed(single)


def test_tally_not_flushed_begins_no_series() -> None:
    """A route that was only watched has no buckets to scrape."""
    registry = CollectorRegistry()
    histogram = TalliedHistogram("h", "of", ("route",), buckets=BOUNDS, registry=registry)

    HistogramTally(histogram, ("r",), BOUNDS).flush()

    assert "h_bucket" not in _exposed(registry)
