"""Metrics of batching windows, copied from what they have counted when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. The label is a route of the policy file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from policies.batching.embeddings import EmbeddingBatches

_INPUTS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_WAIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class BatchingMetrics:
    """Every metric of batching, on the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"slipstream_batching_{name}", meaning, ("route", *labels), registry=registry)

        def histogram(name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"slipstream_batching_{name}", meaning, ("route",), buckets=buckets, registry=registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(
                f"slipstream_batching_{name}", meaning, ("route",), registry=registry, multiprocess_mode="livesum"
            )

        self.calls = counter("calls", "Calls that could share an upstream call, by how they went.", "how")
        self.splits = counter("splits", "Shared calls that had to part and go again, by the reason.", "reason")
        self.overdue = counter("overdue", "Upstream calls that took longer than others wait for.")
        self.inputs = histogram(
            "inputs", "Inputs of an upstream call; at most 1000 between two scrapes are observed.", _INPUTS_BUCKETS
        )
        self.wait = histogram(
            "wait_seconds", "Calls' waits to be sent off; at most 1000 between two scrapes.", _WAIT_BUCKETS
        )
        self.waiting = gauge("waiting", "Inputs that wait.")
        self.in_flight = gauge("in_flight", "Upstream calls that keep others waiting.")

    def metrics(self) -> list[Counter | Gauge | Histogram]:
        """All of them, for who compares."""
        return list(vars(self).values())

    def refresh(self, route: str, batches: EmbeddingBatches) -> None:
        """Bring a route's metrics up to date."""
        taken = batches.take_tally()
        for how, number in taken.calls.items():
            self.calls.labels(route, how).inc(number)
        for reason, number in taken.splits.items():
            self.splits.labels(route, reason).inc(number)
        self.overdue.labels(route).inc(taken.overdue)
        for size in taken.sizes:
            self.inputs.labels(route).observe(size)
        for seconds in taken.waits:
            self.wait.labels(route).observe(seconds)
        now = batches.batching_statistics()
        self.waiting.labels(route).set(now.waiting)
        self.in_flight.labels(route).set(now.in_flight)

    def gauges(self) -> tuple[Gauge, Gauge]:
        """Those that a route leaves behind."""
        return self.waiting, self.in_flight
