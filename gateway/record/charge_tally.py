"""Adds up what attempts used, for metrics: at the end of a request, and later for what ends later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from backends.charges.charge import Charge
from backends.protocol import Facts
from gateway.metrics.charges import ChargeMetrics
from gateway.metrics.requests import OTHER
from policies.prices.price import PICO_PER_DOLLAR

_Labels = TypeVar("_Labels")
_KINDS = ("prompt", "completion", "cached")


class ChargeTally:
    """Sums since the last flush."""

    def __init__(self, metrics: ChargeMetrics) -> None:
        self.counted = 0
        """Pico-dollars since the start, as whole ones: what the ledger is held against."""
        self._metrics = metrics
        self._tokens: dict[tuple[str, str, bool], list[int]] = {}
        self._costs: Counter[tuple[str, str]] = Counter()
        """In pico-dollars, which are dollars only where Prometheus counts them, for which floats are enough."""
        self._unmetered: Counter[tuple[str, str]] = Counter()
        self._unpriced: Counter[tuple[str, str]] = Counter()

    def add(self, route: str, facts: Facts) -> None:
        """The attempts of a request that is over. One that still runs, for whoever joined it, is added at its end."""
        for charge in facts.charges or ():
            # To make somebody to tell takes as long as to count, and nearly all are settled.
            if charge.is_settled:
                self.count(route, charge)
            else:
                charge.when_settled(partial(self.count, route))

    def count(self, route: str, charge: Charge) -> None:
        """One that is settled."""
        usage = charge.usage
        backend = charge.backend or OTHER
        if usage is not None:
            sums = self._tokens.setdefault((route, backend, charge.is_estimated), [0, 0, 0])
            sums[0] += usage.prompt_tokens
            sums[1] += usage.completion_tokens
            sums[2] += usage.cached_tokens
            if charge.cost is None:
                self._unpriced[route, backend] += 1
            else:
                self._costs[route, backend] += charge.cost
                self.counted += charge.cost
        elif charge.is_estimated:
            self._unmetered[route, backend] += 1

    def flushes(self) -> Iterator[Callable[[], None]]:
        """A step for each route and backend, to run before the next one is asked for: others may flush in between."""
        yield from _steps(self._tokens, self._flush_tokens)
        yield from _steps(self._costs, self._flush_cost)
        yield from _steps(self._unpriced, self._flush_unpriced)
        yield from _steps(self._unmetered, self._flush_unmetered)

    def _flush_tokens(self, labels: tuple[str, str, bool]) -> None:
        route, backend, is_estimated = labels
        source = "estimated" if is_estimated else "upstream"
        for kind, number in zip(_KINDS, self._tokens.pop(labels), strict=True):
            if number:
                self._metrics.tokens.labels(route, backend, kind, source).inc(number)

    def _flush_cost(self, where: tuple[str, str]) -> None:
        self._metrics.cost.labels(*where).inc(self._costs.pop(where) / PICO_PER_DOLLAR)

    def _flush_unpriced(self, where: tuple[str, str]) -> None:
        self._metrics.unpriced.labels(*where).inc(self._unpriced.pop(where))

    def _flush_unmetered(self, where: tuple[str, str]) -> None:
        self._metrics.unmetered.labels(*where).inc(self._unmetered.pop(where))


def _steps(sums: Mapping[_Labels, object], flush: Callable[[_Labels], None]) -> Iterator[Callable[[], None]]:
    for labels in list(sums):
        if labels in sums:
            yield partial(flush, labels)
