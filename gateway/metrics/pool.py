"""Metrics of what pools do beside asking once: retries, hedges, ejections; and of probes.

`docs/metrics.md` describes each of them; a test compares the two. Labels are backends and routes of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from policies.pool.health.prober import Prober
    from policies.pool.pool import Pool


class PoolMetrics:
    """Every metric of pools and probes, on the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"slipstream_{name}", meaning, labels, registry=registry)

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
        self.breaker_open = Gauge(
            "slipstream_breaker_open",
            "1 while a backend is out of a route's rotation; not there before the first time.",
            ("route", "backend"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.up = Gauge(
            "slipstream_probe_up",
            "1 while probes find a backend working.",
            ("backend",),
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._opened: set[tuple[str, str]] = set()

    def metrics(self) -> list[Gauge | Counter]:
        """All of them, for who compares."""
        return [*self._counts.values(), self.ejections, self.probe_failures, self.breaker_open, self.up]

    def refresh(self, pool: Pool) -> None:
        """Add what a route's pool has counted since the last time."""
        tally = pool.take_tally()
        for name, number in tally.counts.items():
            self._counts[name].labels(pool.name).inc(number)
        for backend, number in tally.ejections.items():
            self.ejections.labels(pool.name, backend).inc(number)

    def refresh_breakers(self, route: str, states: Mapping[str, str]) -> None:
        """Show which are open. One that has never been has no series: most never are, and there are many."""
        for name, state in states.items():
            is_open = state != "closed"
            if is_open:
                self._opened.add((route, name))
            if (route, name) in self._opened:
                self.breaker_open.labels(route, name).set(is_open)

    def forget_breakers(self, route: str, names: Iterable[str]) -> list[str]:
        """Those of the breakers that have a series, which is to go."""
        gone = [name for name in names if (route, name) in self._opened]
        self._opened.difference_update((route, name) for name in gone)
        return gone

    def refresh_probes(self, prober: Prober) -> None:
        """Bring what is known of probed backends up to date."""
        for name, patient in prober.patients.items():
            self.probe_failures.labels(name).inc(patient.take_failures())
            self.up.labels(name).set(patient.is_up)
