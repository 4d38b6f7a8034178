"""What is kept of the gauges of this process each minute, so that they have a past without Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from prometheus_client import Gauge

from gateway.ledger.samples import GaugeSample
from gateway.limits.metrics import LimitMetrics
from gateway.metrics.backend import BackendMetrics
from gateway.metrics.metrics import Metrics
from gateway.metrics.pool import PoolMetrics
from gateway.metrics.semantic import SemanticMetrics

_MOST = 500
"""Of a policy with more backends and routes, the first ones."""


def gauge_samples(metrics: Metrics, minute: int) -> list[GaugeSample]:
    """The gauges as they were refreshed last."""
    backends, pool, semantic = metrics.of(BackendMetrics), metrics.of(PoolMetrics), metrics.of(SemanticMetrics)
    told: tuple[tuple[str, Gauge, str, Callable[[float], float]], ...] = (
        ("in_flight", backends.in_flight, "backend", float),
        ("out", pool.breaker_open, "backend", float),
        ("silent", pool.up, "backend", lambda is_up: 1.0 - is_up),
        ("wrong_at_most", semantic.rate_upper, "route", float),
    )
    found = (
        GaugeSample(minute, name, label, value(number))
        for name, gauge, key, value in told
        for label, number in _values(gauge, key)
    )
    limits = metrics.of(LimitMetrics)
    most = dict(_values(limits.budget, "rule"))
    spent = (
        GaugeSample(minute, "spent", rule, float(used >= most[rule])) for rule, used in _values(limits.used, "rule")
    )
    return list(islice(chain(spent, found), _MOST))


def _values(gauge: Gauge, key: str) -> Iterator[tuple[str, float]]:
    for family in gauge.collect():
        for sample in family.samples:
            yield sample.labels[key], sample.value
