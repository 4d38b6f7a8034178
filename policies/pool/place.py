"""A member's place in a pool, with what the pool has learned of it there."""

from __future__ import annotations

from dataclasses import dataclass

from backends.protocol import Call
from backends.quotas.upstream_keys import UpstreamKeys
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
    quota: UpstreamKeys | None = None
    """What its backend may be asked; None where nobody keeps to that."""

    def quota_wait_s(self, call: Call) -> float:
        """Seconds until the backend's quota has room for the call; 0 if now."""
        return 0.0 if self.quota is None else self.quota.room_in_s(call, self.member.model or call.model)

    def reserve(self, call: Call) -> None:
        """Take what the call needs of that, before it is sent. Raises: UpstreamExhausted where there is no room."""
        if self.quota is not None:
            call.facts.reservation = self.quota.reserve(call, self.member.model or call.model)

    @property
    def counted(self) -> Replica:
        """The replica, for those who are only there where calls are counted."""
        assert self.replica is not None, "nobody balances by load, or has a gate, without routing"
        return self.replica
