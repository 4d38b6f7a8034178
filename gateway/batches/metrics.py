"""Metrics of /v1/batches, copied from what was done and what the driver has seen, when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Of several workers only the one that drives knows
what waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.batches.records import UNFINISHED
from gateway.batches.statistics import Counted
from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime


class BatchesMetrics(MetricGroup):
    """Every metric of batches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_batches_")
        counter, gauge = self.counter, self.gauge
        self.ended = counter("ended", "Batches that ended, by the status that they ended with.", "status")
        self.lines = counter("lines", "Lines of batches that ended, by how.", "route", "how")
        self.tokens = counter("tokens", "Tokens of answered lines.", "route", "kind")
        self.cost = counter("cost", "What answered lines cost, in the currency of `price`.", "route")
        self.open = gauge("open", "Batches that are not done, by status.", "status")
        self.stored = gauge("stored_bytes", "Bytes of all files of all tenants.")
        self.full = gauge("disk_full", "1 while lines wait because the disk has no room for their answers.")
        self.waiting = gauge("waiting", "Lines that wait to be asked.", "route")
        self.oldest = gauge("oldest_seconds", "For how long the oldest of them has waited.", "route")
        self.upstream = gauge("upstream", "Batches at a provider.", "route")
        self._shown: set[str] = set()
        self._batches: Counted | None = None

    def watch(self, batches: Counted) -> None:
        """Show what it does."""
        self._batches = batches

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """One for all, and one for each route for which nothing waits any more; batches outlive policies."""
        if self._batches is not None:
            before = self._shown
            yield partial(self._copy, self._batches)
            yield from self.drops("route", before - self._shown)

    def _copy(self, batches: Counted) -> None:
        done = batches.take_tally()
        for status, number in done.batches.items():
            self.ended.labels(status).inc(number)
        for (route, how), number in done.lines.items():
            self.lines.labels(route, how).inc(number)
        for (route, kind), number in done.tokens.items():
            self.tokens.labels(route, kind).inc(number)
        for route, cost in done.cost.items():
            self.cost.labels(route).inc(cost)
        now = batches.statistics()
        for status in UNFINISHED:
            self.open.labels(status).set(now.batches.get(status, 0))
        self.stored.set(now.stored_bytes)
        self.full.set(now.is_full)
        for route, queue in now.routes.items():
            self.waiting.labels(route).set(queue.waiting)
            self.oldest.labels(route).set(queue.oldest_s)
            self.upstream.labels(route).set(now.jobs.get(route, 0))
        self._shown = set(now.routes)
