"""Metrics of balancing by load, copied from what the fleet has counted when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are backends and routes of the policy file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from policies.pool.load.fleet import Fleet
    from policies.pool.load.replica import ReplicaStatistics


class RoutingMetrics:
    """Every metric of balancing, on the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"slipstream_routing_{name}", meaning, labels, registry=registry)

        def gauge(name: str, meaning: str, workers: Literal["livesum", "livemax"]) -> Gauge:
            return Gauge(
                f"slipstream_routing_{name}", meaning, ("replica",), registry=registry, multiprocess_mode=workers
            )

        self.unpredicted = counter("unpredicted", "Decisions made without a prediction.", "route", "reason")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens sent, as estimated.", "replica", "kind")
        self.known = gauge("model_known", "1 while first tokens can be predicted.", "livemax")
        self.error = gauge(
            "first_token_error", "Running median of how far predictions are off, as a share of them.", "livemax"
        )
        self.residual = gauge("first_token_residual", "Running 95th percentile of observed / predicted.", "livemax")
        self.degraded = gauge(
            "degraded", "1 while first tokens come far too late, so that it counts as more costly.", "livemax"
        )
        self.per_token = gauge("seconds_per_token", "What an uncached prompt token takes to compute.", "livemax")
        self.nonsense = gauge("nonsense", "Observations that could not be, since start.", "livesum")
        self.in_flight = gauge("tokens_in_flight", "Tokens in hand: prompts, and answers as expected.", "livesum")
        self.blocks = gauge("index_blocks", "Blocks of prompts that it is thought to hold.", "livemax")

    def metrics(self) -> list[Gauge | Counter]:
        """All of them, for who compares."""
        return [value for value in vars(self).values() if isinstance(value, Gauge | Counter)]

    def gauges(self) -> list[Gauge]:
        """Those that a replica leaves behind; their label is its name."""
        return [metric for metric in self.metrics() if isinstance(metric, Gauge)]

    def refresh_tally(self, fleet: Fleet) -> None:
        """Add what has been counted since the last time."""
        tally = fleet.take_tally()
        for (route, reason), number in tally.without_prediction.items():
            self.unpredicted.labels(route, reason).inc(number)
        for name, (prompt, matched) in tally.tokens.items():
            self.prompt_tokens.labels(name, "all").inc(prompt)
            self.prompt_tokens.labels(name, "matched").inc(matched)

    def refresh_replica(self, replica: ReplicaStatistics) -> None:
        """Bring one replica's gauges up to date."""
        self.known.labels(replica.name).set(replica.doubt is None)
        self.error.labels(replica.name).set(replica.error)
        self.residual.labels(replica.name).set(replica.residual)
        self.degraded.labels(replica.name).set(replica.is_degraded)
        self.per_token.labels(replica.name).set(replica.seconds_per_token)
        self.nonsense.labels(replica.name).set(replica.nonsense)
        self.in_flight.labels(replica.name).set(replica.in_flight_tokens)
        self.blocks.labels(replica.name).set(replica.index_blocks)
