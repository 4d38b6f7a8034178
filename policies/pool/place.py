"""A member's place in a pool, with what the pool has learned of it there."""

from __future__ import annotations

from dataclasses import dataclass

from policies.pool.attempts.patience import Patience
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.replica import Replica
from policies.pool.member import Member


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Compared by identity: the same backend may have two places. `label` tells them apart where people read.

    `replica` is the backend as load balancing sees it; None where the pool has no routing.
    """

    member: Member
    label: str
    breaker: CircuitBreaker
    patience: Patience
    replica: Replica | None

    @property
    def counted(self) -> Replica:
        """The replica, for those who are only there where calls are counted."""
        assert self.replica is not None, "nobody balances by load, or has a gate, without routing"
        return self.replica
