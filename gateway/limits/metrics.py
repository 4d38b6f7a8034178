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
from policies.prices.price import PICO_PER_DOLLAR

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.limits.counters import SharedStatistics
    from policies.limits.limiter import Limiter
    from policies.limits.rules import Budget


class LimitMetrics(MetricGroup):
    """Every metric of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_limit_")
        self.refused = self.counter("refused", "Calls that a limit or budget refused.", "rule", "reached")
        self.warned = self.counter("warnings", "Budgets of which a warning went out.", "rule")
        self.budget = self.gauge(
            "budget_usd", "What a budget of all calls together has now, raises included.", "rule", workers="livemax"
        )
        self.used = self.gauge(
            "budget_used_usd",
            "What of it was spent, or held by others, when a call asked last.",
            "rule",
            workers="livemax",
        )
        self.is_away = self.gauge("store_away", "1 while Redis does not count limits and budgets.", workers="livemax")
        self.outages = self.counter("store_outages", "How often it began not to.")
        self.without = self.counter("without_store", "Calls that were let in or refused without it.")
        self.replicas = self.gauge("replicas", "Processes that count together.", workers="livemax")
        self.held = self.gauge("held", "Calls that hold something there.")
        self.waiting = self.gauge("settlements_waiting", "Ended calls that it has not been told of.")
        self.swept = self.counter("swept", "Calls of processes that died, whose most was counted as spent.")
        self.dropped = self.counter("settlements_dropped", "Amounts that it was never told, for too many waited.")
        self._shown: Tally[tuple[str, ...]] = Tally()
        self._limiter: Limiter | None = None

    def watch(self, limiter: Limiter) -> None:
        """Show what it does."""
        self._limiter = limiter

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """One for all. Of budgets the first warning and refusal are to be seen, so they begin at 0."""
        for budget in runtime.rules.budgets:
            yield partial(self._begin, budget.name)
        if self._limiter is not None:
            yield partial(self._copy, self._limiter)
            for budget in runtime.rules.budgets:
                if budget.is_of_all:
                    yield partial(self._copy_budget, self._limiter, budget)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """What a budget has is told as long as there is one."""
        yield from self.drops("rule", _of_all(previous) - _of_all(runtime))

    def _begin(self, budget: str) -> None:
        self.warned.labels(budget)
        self.refused.labels(budget, "usd")

    def _copy(self, limiter: Limiter) -> None:
        for labels, total in limiter.refused.items():
            self.refused.labels(*labels).inc(self._new(labels, total))
        for rule, total in limiter.warned.items():
            self.warned.labels(rule).inc(self._new((rule,), total))

        shared = limiter.counters.statistics()
        if shared is not None:
            self._copy_shared(shared)

    def _copy_budget(self, limiter: Limiter, budget: Budget) -> None:
        most, used = limiter.state_of(budget)
        self.budget.labels(budget.name).set(most / PICO_PER_DOLLAR)
        if used is not None:
            self.used.labels(budget.name).set(used / PICO_PER_DOLLAR)

    def _copy_shared(self, shared: SharedStatistics) -> None:
        self.is_away.set(shared.is_away)
        self.replicas.set(shared.replicas)
        self.held.set(shared.held)
        self.waiting.set(shared.waiting)
        self.outages.inc(self._new(("outages",), shared.outages))
        self.without.inc(self._new(("without",), shared.without))
        self.swept.inc(self._new(("swept",), shared.swept))
        self.dropped.inc(self._new(("dropped",), shared.dropped))

    def _new(self, labels: tuple[str, ...], total: int) -> int:
        new = total - self._shown[labels]
        self._shown[labels] = total
        return new


def _of_all(runtime: Runtime) -> set[str]:
    return {budget.name for budget in runtime.rules.budgets if budget.is_of_all}
