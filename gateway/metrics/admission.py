"""Metrics of limits and admission: what was in time, who waits, who was turned away.

`docs/metrics.md` describes each of them; a test compares the two. The label `route` is one of the policy file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from policies.admission.gate import Gate

_WAIT_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class AdmissionMetrics:
    """Every metric of limits and admission, on the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(
                f"slipstream_admission_{name}", meaning, ("route",), registry=registry, multiprocess_mode="livesum"
            )

        self.requests = Counter(
            "slipstream_slo_requests",
            "Requests by how they stood to the limits of their route.",
            ("route", "outcome"),
            registry=registry,
        )
        self.shed = Counter(
            "slipstream_admission_shed",
            "Calls turned away, or sent to another route, for want of room.",
            ("route", "reason"),
            registry=registry,
        )
        self.wait = Histogram(
            "slipstream_admission_wait_seconds",
            "Waits in front of backends, of calls that had to wait, also of those that were turned away.",
            ("route",),
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.waiting = gauge("waiting", "Calls that wait.")
        self.waiting_tokens = gauge("waiting_tokens", "Tokens of their prompts, as estimated.")
        self.drain = Gauge(
            "slipstream_admission_drain_seconds",
            "How long those who wait will take, at the present pace.",
            ("route",),
            registry=registry,
            multiprocess_mode="livemax",
        )

    def metrics(self) -> list[Gauge | Counter | Histogram]:
        """All of them, for who compares."""
        return list(vars(self).values())

    def gauges(self) -> tuple[Gauge, ...]:
        """Those that a route leaves behind."""
        return self.waiting, self.waiting_tokens, self.drain

    def refresh(self, route: str, gate: Gate) -> None:
        """Bring what is known of a route's gate up to date."""
        for reason, number in gate.take_shed().items():
            self.shed.labels(route, reason).inc(number)
        now = gate.statistics()
        self.waiting.labels(route).set(now.waiting)
        self.waiting_tokens.labels(route).set(now.waiting_tokens)
        self.drain.labels(route).set(now.drain_s)
