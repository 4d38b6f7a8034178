"""What is written of a registry is what prometheus_client writes, to the byte."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from gateway.metrics.engine import EngineMetrics
from gateway.metrics.exposition import exposition
from gateway.metrics.metrics import Metrics
from gateway.metrics.requests import RequestMetrics


def test_exposition_is_that_of_the_client_library() -> None:
    """Every kind of metric, without labels and with them before and behind `le`, values that have to be escaped."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    Counter("plain", "No labels.", registry=registry).inc(3)
    Gauge("g", 'Back\\slash, "quotes"\nand a line.', ("b", "a"), registry=registry).labels('x"y\\z\n', "a,b=1").set(
        -0.5
    )
    Histogram("h", "Plain.", registry=registry, buckets=(0.1, 1)).observe(0.5)
    seconds = Histogram("s", "Around le.", ("route", "backend"), registry=registry, buckets=(0.001, 2.5, 1e6))
    for value in (0.0001, 3.0, 1e9):
        seconds.labels("r,1", "b}2").observe(value)
    Counter("idle", "Never counted.", ("x",), registry=registry)
    for number in (float("inf"), float("nan"), 1e300, 12345678.9, 0.1 + 0.2):
        Gauge(f"n{abs(hash(number))}", "A number.", registry=registry).set(number)

    assert "".join(exposition(registry)).encode() == generate_latest(registry)


def test_exposition_of_the_gateways_own_metrics_is_that_of_the_client_library() -> None:
    """All of them, with a series or two."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    requests = metrics.of(RequestMetrics)
    requests.requests.labels("r", "chat", "m", "200").inc()
    requests.duration.labels("r", "chat", "m").observe(0.2)
    metrics.of(EngineMetrics).first_token.labels("m", "e").observe(0.2)

    assert "".join(exposition(registry)).encode() == generate_latest(registry)
