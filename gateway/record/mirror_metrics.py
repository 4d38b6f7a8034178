"""Metrics of mirrors, copied from what their stages have found out when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. The label is a route of the policy file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.mirror.evidence import MirrorLimits
    from policies.mirror.stage import Mirror


class MirrorMetrics(MetricGroup):
    """What is known of candidates. Each worker has evidence of its own; of several the largest value is shown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_mirror_", "route")
        gauge = partial(self.gauge, workers="livemax")
        self.pairs = gauge("pairs", "Pairs of answers of which is known whose was better, or that neither was.")
        self.won = gauge("pairs_won", "Pairs in which the candidate's answer was better.")
        self.lost = gauge("pairs_lost", "Pairs in which it was worse, or there was none.")
        self.gain = _Limits(gauge, "gain", "Pairs won less pairs lost, as a share of all")
        self.agreement = _Limits(gauge, "agreement", "Share of answers that say the same")
        self.cost = _Limits(gauge, "cost_ratio", "What the candidate costs, by what the route does")
        self.our_seconds = gauge("route_seconds", "Mean seconds to a whole answer of the route.")
        self.their_seconds = gauge("candidate_seconds", "Mean seconds to a whole answer of the candidate.")
        self.promoted = gauge("promoted", "1 where the candidate answers the route's calls.")
        self.decided = gauge("decided", "1 where no more copies are made, for the question is answered or given up.")

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step for each route with a mirror."""
        for route, stage in _mirrors_of(runtime).items():
            yield partial(self._copy, route, stage)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step for each route that has no mirror any more."""
        for stack in previous.stacks.built():
            kept = runtime.stacks.get(stack.policy.name)
            if stack.policy.mirror is not None and (kept is None or kept.policy.mirror is None):
                yield from self.drops("route", (stack.policy.name,))

    def _copy(self, route: str, stage: Mirror) -> None:
        evidence = stage.evidence
        self.pairs.labels(route).set(evidence.num_pairs)
        self.won.labels(route).set(evidence.wins)
        self.lost.labels(route).set(evidence.losses)
        self.gain.set(route, evidence.gain)
        self.agreement.set(route, evidence.agreement)
        self.cost.set(route, evidence.cost)
        ours, theirs = evidence.seconds
        self.our_seconds.labels(route).set(ours / max(1, evidence.num_answers))
        self.their_seconds.labels(route).set(theirs / max(1, evidence.num_answers))
        self.promoted.labels(route).set(stage.is_promoted)
        self.decided.labels(route).set(stage.verdict != "open")


class _Limits:
    """An estimate as three gauges; 0 while there is none."""

    def __init__(self, gauge: Callable[[str, str], Gauge], name: str, meaning: str) -> None:
        self._value = gauge(name, f"{meaning}.")
        self._lower = gauge(f"{name}_lower", "Lower 95 % limit of that.")
        self._upper = gauge(f"{name}_upper", "Upper 95 % limit of that.")

    def set(self, route: str, found: MirrorLimits | None) -> None:
        """What is known by now."""
        self._value.labels(route).set(found.value if found is not None else 0)
        self._lower.labels(route).set(found.low if found is not None else 0)
        self._upper.labels(route).set(found.high if found is not None else 0)


def _mirrors_of(runtime: Runtime) -> dict[str, Mirror]:
    stacks = [stack for stack in runtime.stacks.built() if stack.policy.mirror is not None]
    if not stacks:
        return {}
    from policies.mirror.stage import Mirror

    return {stack.policy.name: stage for stack in stacks if (stage := stack.stage(Mirror)) is not None}
