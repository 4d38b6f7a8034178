"""Pools that hedge, over any leaves: with latency models that are known already, and a budget that is full."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from backends.clock import Clock
from backends.protocol import Backend
from policies.pool.attempts.hedge import Hedging
from policies.pool.load.fleet import Fleet
from policies.pool.load.latency_model import features
from policies.pool.load.replica import Replica
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.schema import RoutePolicy

EXPECTED_S = 0.05
"""What is predicted for the first token of every call; it is late after twice that."""


class Hedged:
    """A route whose first backend takes every call that it can, and the second the hedges."""

    def __init__(
        self, leaves: Sequence[Backend], clock: Clock, *, budget: float = 0.5, saved: int = 20, attempts: int = 0
    ) -> None:
        self.route = RoutePolicy.model_validate(
            {
                "name": "route",
                "match": {"models": ["*"]},
                "backends": [{"ref": leaf.name, "priority": place} for place, leaf in enumerate(leaves)],
                "retry": {"attempts": attempts},
                "hedge": {"budget": budget, "quantile": 0.95},
            }
        )
        self.fleet = Fleet([self.route], {leaf.name: leaf for leaf in leaves}, clock, random=Random(1))
        routing = self.fleet.routing("route")
        assert routing is not None
        self.replicas: tuple[Replica, ...] = routing.replicas
        assert self.route.hedge is not None
        self.hedging = Hedging(self.route.hedge, clock)
        for _ in range(saved):
            self.hedging.earn()
        self.pool = Pool(
            "route",
            [Member(leaf, priority=place) for place, leaf in enumerate(leaves)],
            retry=self.route.retry,
            breaker=self.route.circuit_breaker,
            clock=clock,
            random=Random(1),
            routing=routing,
            hedging=self.hedging,
        )

    def teach(self, expected_s: float = EXPECTED_S) -> None:
        """Let every replica have shown first tokens after that time."""
        for replica in self.replicas:
            for _ in range(60):
                replica.model.observe(features(0, 10, 10, 0, 0), expected_s)
            replica.model.output_tokens = 1.0

    def num_in_flight(self) -> int:
        """Attempts that the replicas still count."""
        return sum(replica.in_flight.requests for replica in self.replicas)
