"""Metrics of what was saved, by cause: the ledger's parts, counted as rows are noted.

`docs/metrics.md` describes each of them; a test compares the two. A counter cannot fall, so what a part is below 0 has
a counter of its own: saved is the one less the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.ledger.row import SAVINGS, Row
from gateway.metrics.group import MetricGroup, Step
from policies.prices.price import PICO_PER_DOLLAR

if TYPE_CHECKING:
    from gateway.runtime import Runtime

_parts = attrgetter(*SAVINGS)
CAUSES: tuple[str, ...] = tuple(name.removeprefix("saved_") for name in SAVINGS)


class SavingsMetrics(MetricGroup):
    """Both of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_")
        on = ("route", "cause")
        self.saved = self.counter("saved_usd", "What calls cost less than at their list price, by cause.", *on)
        self.overpaid = self.counter("overpaid_usd", "What they cost more than that, by cause.", *on)
        self._sums: dict[str, tuple[list[int], list[int]]] = {}
        """By route: of each cause what is above 0, and what is below."""

    def note(self, row: Row) -> None:
        """What it saved, as far as that is known."""
        if row.list_cost == row.cost and not (row.saved_cheaper or row.saved_batch or row.saved_share):
            # Of what is left no two parts are ever together, so all are 0: most calls are like that.
            return
        sums = self._sums.get(row.route)
        if sums is None:
            sums = self._sums[row.route] = ([0] * len(CAUSES), [0] * len(CAUSES))
        for place, amount in enumerate(_parts(row)):
            if amount:
                sums[amount < 0][place] += amount

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step for each route that has news; another refresh may be under way."""
        for route in list(self._sums):
            if route in self._sums:
                yield partial(self._flush, route)

    def _flush(self, route: str) -> None:
        for counter, sums in zip((self.saved, self.overpaid), self._sums.pop(route), strict=True):
            for cause, amount in zip(CAUSES, sums, strict=True):
                if amount:
                    counter.labels(route, cause).inc(abs(amount) / PICO_PER_DOLLAR)
