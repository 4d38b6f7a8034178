"""Metrics of what pools do beside asking once: retries, hedges, ejections; and of probes.

`docs/metrics.md` describes each of them; a test compares the two. Labels are backends and routes of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step, drop_series

if TYPE_CHECKING:
    from gateway.runtime import Runtime, Stack
    from policies.pool.health.prober import Prober


class PoolMetrics(MetricGroup):
    """Every metric of pools and probes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_")
        counter, gauge = self.counter, self.gauge
        self._counts = {
            "retries": counter("retries", "Further attempts after one that failed.", "route"),
            "retries_over_budget": counter(
                "retries_over_budget", "Calls that stayed failed for want of budget.", "route"
            ),
            "hedges": counter("hedges", "Second backends asked since the first was late.", "route"),
            "hedges_won": counter("hedges_won", "Those of them that answered.", "route"),
            "hedges_over_budget": counter(
                "hedges_over_budget", "Late calls without a second backend for want of budget.", "route"
            ),
            "hedge_wasted_tokens": counter(
                "hedge_wasted_tokens", "Prompt tokens, as estimated, of attempts given up for the other one.", "route"
            ),
        }
        self.ejections = counter("ejections", "Times that a backend left a route's rotation.", "route", "backend")
        self.probe_failures = counter("probe_failures", "Probes without a good answer.", "backend")
        self.breaker_open = gauge(
            "breaker_open",
            "1 while a backend is out of a route's rotation; not there before the first time.",
            *("route", "backend"),
            workers="livemax",
        )
        self.up = gauge("probe_up", "1 while probes find a backend working.", "backend", workers="livemin")
        self._opened: set[tuple[str, str]] = set()

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step a route, and one for the probes."""
        for stack in runtime.stacks.built():
            yield partial(self._copy, stack)
        if runtime.prober is not None:
            yield partial(self._copy_probes, runtime.prober)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step a route, and one for each backend that is not probed any more."""
        if previous.prober is not None:
            yield partial(self._copy_probes, previous.prober)
            kept = runtime.prober.patients.keys() if runtime.prober is not None else frozenset[str]()
            yield from self.drops("backend", previous.prober.patients.keys() - kept)
        for stack in previous.stacks.built():
            yield partial(self._retire_stack, stack, runtime.stacks.if_built(stack.policy.name))

    def _copy(self, stack: Stack) -> None:
        """A breaker that has never been open has no series: most never are, and there are many."""
        self._copy_counts(stack)
        route = stack.policy.name
        for name, state in stack.pool.breaker_states().items():
            is_open = state != "closed"
            if is_open:
                self._opened.add((route, name))
            if (route, name) in self._opened:
                self.breaker_open.labels(route, name).set(is_open)

    def _copy_counts(self, stack: Stack) -> None:
        route, tally = stack.pool.name, stack.pool.take_tally()
        for name, number in tally.counts.items():
            self._counts[name].labels(route).inc(number)
        for backend, number in tally.ejections.items():
            self.ejections.labels(route, backend).inc(number)

    def _retire_stack(self, stack: Stack, kept: Stack | None) -> None:
        self._copy_counts(stack)
        route = stack.policy.name
        names = stack.pool.breaker_states().keys() - (kept.pool.breaker_states().keys() if kept is not None else set())
        for name in names:
            if (route, name) in self._opened:
                self._opened.remove((route, name))
                drop_series(self.breaker_open, route, name)

    def _copy_probes(self, prober: Prober) -> None:
        for name, patient in prober.patients.items():
            self.probe_failures.labels(name).inc(patient.take_failures())
            self.up.labels(name).set(patient.is_up)
