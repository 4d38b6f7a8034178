"""Metrics for autoscalers, copied from what a policy has seen of its routes when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are routes of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.autoscale import Autoscale


class AutoscalingMetrics(MetricGroup):
    """Every metric of autoscaling. Loads of workers add up; of the rest the worst counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_autoscale_", "route")
        gauge = self.gauge
        self.replicas = gauge("replicas", "Backends of the route.", workers="livemax")
        self.desired = gauge("desired_replicas", "Backends that its traffic needs.", workers="livemax")
        self.breach = gauge(
            "time_to_breach_seconds",
            "Until new calls wait longer than they may, if all goes on so.",
            workers="livemin",
        )
        self.prefill = gauge("prefill_load", "Backends that computing the prompts keeps busy.")
        self.memory = gauge("memory_load", "Backends that keys and values fill.")
        self.shed = gauge("shed_share", "Calls turned away, as a share of those that came.", workers="livemax")

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step a route."""
        if runtime.autoscale is not None:
            for route in runtime.autoscale.routes:
                yield partial(self._copy, route, runtime.autoscale)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step for each route that is not watched any more."""
        if previous.autoscale is not None:
            kept = runtime.autoscale.routes if runtime.autoscale is not None else frozenset[str]()
            yield from self.drops("route", previous.autoscale.routes - kept)

    def _copy(self, route: str, autoscale: Autoscale) -> None:
        signals = autoscale.signals(route)
        self.replicas.labels(route).set(signals.replicas)
        self.desired.labels(route).set(signals.desired_replicas)
        self.breach.labels(route).set(signals.time_to_breach_s)
        self.prefill.labels(route).set(signals.prefill_load)
        self.memory.labels(route).set(signals.memory_load)
        self.shed.labels(route).set(signals.shed_share)
