"""Metrics of balancing by load, copied from what the fleet has counted when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are backends and routes of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.pool.load.fleet import Fleet
    from policies.pool.load.replica import ReplicaStatistics


class RoutingMetrics(MetricGroup):
    """Every metric of balancing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_routing_")
        counter, gauge = self.counter, self.gauge
        self.unpredicted = counter("unpredicted", "Decisions made without a prediction.", "route", "reason")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens sent, as estimated.", "replica", "kind")
        self.known = gauge("model_known", "1 while first tokens can be predicted.", "replica", workers="livemax")
        self.error = gauge(
            "first_token_error",
            "Running median of how far predictions are off, as a share of them.",
            "replica",
            workers="livemax",
        )
        self.residual = gauge(
            "first_token_residual", "Running 95th percentile of observed / predicted.", "replica", workers="livemax"
        )
        self.degraded = gauge(
            "degraded",
            "1 while first tokens come far too late, so that it counts as more costly.",
            "replica",
            workers="livemax",
        )
        self.per_token = gauge(
            "seconds_per_token", "What an uncached prompt token takes to compute.", "replica", workers="livemax"
        )
        self.nonsense = gauge("nonsense", "Observations that could not be, since start.", "replica")
        self.in_flight = gauge("tokens_in_flight", "Tokens in hand: prompts, and answers as expected.", "replica")
        self.blocks = gauge(
            "index_blocks", "Blocks of prompts that it is thought to hold.", "replica", workers="livemax"
        )

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step for the tally of the fleet, and one a replica."""
        if runtime.fleet is not None:
            yield partial(self._copy_tally, runtime.fleet)
            for replica in runtime.fleet.statistics():
                yield partial(self._copy_replica, replica)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step for the last tally, and one a replica that is gone."""
        if previous.fleet is not None:
            yield partial(self._copy_tally, previous.fleet)
            kept = runtime.fleet.names if runtime.fleet is not None else frozenset[str]()
            yield from self.drops("replica", previous.fleet.names - kept)

    def _copy_tally(self, fleet: Fleet) -> None:
        tally = fleet.take_tally()
        for (route, reason), number in tally.without_prediction.items():
            self.unpredicted.labels(route, reason).inc(number)
        for name, (prompt, matched) in tally.tokens.items():
            self.prompt_tokens.labels(name, "all").inc(prompt)
            self.prompt_tokens.labels(name, "matched").inc(matched)

    def _copy_replica(self, replica: ReplicaStatistics) -> None:
        self.known.labels(replica.name).set(replica.doubt is None)
        self.error.labels(replica.name).set(replica.error)
        self.residual.labels(replica.name).set(replica.residual)
        self.degraded.labels(replica.name).set(replica.is_degraded)
        self.per_token.labels(replica.name).set(replica.seconds_per_token)
        self.nonsense.labels(replica.name).set(replica.nonsense)
        self.in_flight.labels(replica.name).set(replica.in_flight_tokens)
        self.blocks.labels(replica.name).set(replica.index_blocks)
