"""Metrics of limits and admission: what was in time, who waits, who was turned away.

`docs/metrics.md` describes each of them; a test compares the two. The label `route` is one of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step
from gateway.record.slo_outcome import SloOutcome
from policies.admission.refusals import Shed

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.admission.gate import Gate

_WAIT_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class AdmissionMetrics(MetricGroup):
    """Every metric of limits and admission."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_", "route")
        counter, gauge = self.counter, self.gauge
        self.requests = counter("slo_requests", "Requests by how they stood to the limits of their route.", "outcome")
        self.shed = counter(
            "admission_shed", "Calls turned away, or sent to another route, for want of room.", "reason"
        )
        self.wait = self.histogram(
            "admission_wait_seconds",
            "Waits in front of backends, of calls that had to wait, also of those that were turned away.",
            buckets=_WAIT_BUCKETS,
        )
        self.waiting = gauge("admission_waiting", "Calls that wait.")
        self.waiting_tokens = gauge("admission_waiting_tokens", "Tokens of their prompts, as estimated.")
        self.drain = gauge(
            "admission_drain_seconds",
            "How long those who wait will take, at the present pace.",
            workers="livemax",
        )

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step a route that has limits, and one a gate; requests and waits are counted as they end."""
        for stack in runtime.stacks.built():
            if stack.slo is not None:
                yield partial(self._begin, stack.policy.name)
        for route, gate in _gates_of(runtime).items():
            yield partial(self._copy, route, gate)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step a gate, and one for each route that has none any more."""
        yield from self.refresh(previous)
        yield from self.drops("route", _gates_of(previous).keys() - _gates_of(runtime).keys())

    def _begin(self, route: str) -> None:
        for outcome in get_args(SloOutcome):
            self.requests.labels(route, outcome)

    def _copy(self, route: str, gate: Gate) -> None:
        for reason in get_args(Shed):
            self.shed.labels(route, reason)
        for reason, number in gate.take_shed().items():
            self.shed.labels(route, reason).inc(number)
        now = gate.statistics()
        self.waiting.labels(route).set(now.waiting)
        self.waiting_tokens.labels(route).set(now.waiting_tokens)
        self.drain.labels(route).set(now.queue_s)


def _gates_of(runtime: Runtime) -> Mapping[str, Gate]:
    return runtime.admission.gates if runtime.admission is not None else {}
