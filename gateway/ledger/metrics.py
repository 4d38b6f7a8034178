"""Metrics of the ledger, copied from what its writer has done, when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step
from policies.prices.price import PICO_PER_DOLLAR

if TYPE_CHECKING:
    from gateway.ledger.ledger import Ledger
    from gateway.runtime import Runtime


class LedgerMetrics(MetricGroup):
    """Every metric of the ledger."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_ledger_")
        counter, gauge = self.counter, self.gauge
        self.rows = counter("rows", "Rows that were stored.")
        self.dropped = counter("dropped", "Rows that are lost, by why.", "reason")
        self.killed = counter("killed", "Calls that were not over when their worker was gone.")
        self.waiting = gauge("waiting", "Records in the journal that wait for the store.")
        self.lag = gauge(
            "lag_seconds", "How long the oldest of them has waited for a store that is away.", workers="livemax"
        )
        self.drift = gauge(
            "drift_usd", "What the metrics say that calls have cost and the ledger's journal does not, or the reverse."
        )
        self._shown: Tally[str] = Tally()
        self._ledger: Ledger | None = None
        self._drift: Callable[[], int] = int

    def watch(self, ledger: Ledger, drift: Callable[[], int]) -> None:
        """Show what it does, and how many pico-dollars lie between it and the metrics."""
        self._ledger, self._drift = ledger, drift

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """One for all."""
        if self._ledger is not None:
            yield partial(self._copy, self._ledger)

    def _copy(self, ledger: Ledger) -> None:
        now = ledger.statistics()
        self.rows.inc(self._new("rows", now.rows))
        self.killed.inc(self._new("killed", now.killed))
        for reason, number in now.dropped.items():
            self.dropped.labels(reason).inc(self._new(reason, number))
        self.waiting.set(now.waiting)
        self.lag.set(now.lag_s)
        # Of several workers, too much in one must not make up for too little in another.
        self.drift.set(abs(self._drift()) / PICO_PER_DOLLAR)

    def _new(self, name: str, total: int) -> int:
        new = max(0, total - self._shown[name])
        self._shown[name] += new
        return new
