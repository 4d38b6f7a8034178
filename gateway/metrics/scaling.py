"""Metrics for autoscalers, copied from what a policy has seen of its routes when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are routes of the policy file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Gauge

if TYPE_CHECKING:
    from policies.autoscale import Autoscale


class ScalingMetrics:
    """Every metric of autoscaling, on the gateway's registry. Loads of workers add up; of the rest the worst counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, meaning: str, workers: Literal["livesum", "livemax", "livemin"]) -> Gauge:
            return Gauge(
                f"slipstream_autoscale_{name}", meaning, ("route",), registry=registry, multiprocess_mode=workers
            )

        self.replicas = gauge("replicas", "Backends of the route.", "livemax")
        self.desired = gauge("desired_replicas", "Backends that its traffic needs.", "livemax")
        self.breach = gauge(
            "time_to_breach_seconds", "Until new calls wait longer than they may, if all goes on so.", "livemin"
        )
        self.prefill = gauge("prefill_load", "Backends that computing the prompts keeps busy.", "livesum")
        self.memory = gauge("memory_load", "Backends that keys and values fill.", "livesum")
        self.shed = gauge("shed_share", "Calls turned away, as a share of those that came.", "livemax")

    def metrics(self) -> list[Gauge]:
        """All of them; a route leaves them behind."""
        return [value for value in vars(self).values() if isinstance(value, Gauge)]

    def refresh(self, route: str, autoscale: Autoscale) -> None:
        """Bring a route's up to date."""
        signals = autoscale.signals(route)
        self.replicas.labels(route).set(signals.replicas)
        self.desired.labels(route).set(signals.desired_replicas)
        self.breach.labels(route).set(signals.time_to_breach_s)
        self.prefill.labels(route).set(signals.prefill_load)
        self.memory.labels(route).set(signals.memory_load)
        self.shed.labels(route).set(signals.shed_share)
