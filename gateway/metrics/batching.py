"""Metrics of batching windows, copied from what they have counted when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. The label is a route of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step
from policies.batching.embeddings import EmbeddingBatches

if TYPE_CHECKING:
    from gateway.runtime import Runtime

_INPUTS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_WAIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class BatchingMetrics(MetricGroup):
    """Every metric of batching."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_batching_", "route")
        counter, gauge, histogram = self.counter, self.gauge, self.histogram
        self.calls = counter("calls", "Calls that could share an upstream call, by how they went.", "how")
        self.splits = counter("splits", "Shared calls that had to part and go again, by the reason.", "reason")
        self.overdue = counter("overdue", "Upstream calls that took longer than others wait for.")
        self.inputs = histogram(
            "inputs",
            "Inputs of an upstream call; at most 1000 between two scrapes are observed.",
            buckets=_INPUTS_BUCKETS,
        )
        self.wait = histogram(
            "wait_seconds",
            "Calls' waits to be sent off; at most 1000 between two scrapes.",
            buckets=_WAIT_BUCKETS,
        )
        self.waiting = gauge("waiting", "Inputs that wait.")
        self.in_flight = gauge("in_flight", "Upstream calls that keep others waiting.")

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step for each route with the stage."""
        for stack in runtime.stacks.built():
            windows = stack.stage(EmbeddingBatches)
            if windows is not None:
                yield partial(self._copy, stack.policy.name, windows)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step for each route that had the stage, one more where it has none any more."""
        yield from self.refresh(previous)
        for stack in previous.stacks.built():
            kept = runtime.stacks.if_built(stack.policy.name)
            if stack.stage(EmbeddingBatches) and (kept is None or kept.stage(EmbeddingBatches) is None):
                yield from self.drops("route", (stack.policy.name,))

    def _copy(self, route: str, batches: EmbeddingBatches) -> None:
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
