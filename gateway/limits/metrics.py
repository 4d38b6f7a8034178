"""Metrics of limits and budgets, copied from the limiter when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are names of the policy file.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.limits.limiter import Limiter


class LimitMetrics(MetricGroup):
    """Every metric of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_limit_")
        self.refused = self.counter("refused", "Calls that a limit or budget refused.", "rule", "reached")
        self.warned = self.counter("warnings", "Budgets of which a warning went out.", "rule")
        self._shown: Tally[tuple[str, ...]] = Tally()
        self._limiter: Limiter | None = None

    def watch(self, limiter: Limiter) -> None:
        """Show what it does."""
        self._limiter = limiter

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """One for all."""
        if self._limiter is not None:
            yield partial(self._copy, self._limiter)

    def _copy(self, limiter: Limiter) -> None:
        for labels, total in limiter.refused.items():
            self.refused.labels(*labels).inc(self._new(labels, total))
        for rule, total in limiter.warned.items():
            self.warned.labels(rule).inc(self._new((rule,), total))

    def _new(self, labels: tuple[str, ...], total: int) -> int:
        new = total - self._shown[labels]
        self._shown[labels] = total
        return new
