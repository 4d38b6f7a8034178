"""A pool's balancers: one for each operation, one for each backend that calls are pinned to, and one for each answer
that broke off and is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.operations import Operation
from backends.protocol import Call
from backends.resume import BrokenAnswer
from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.by_weight import Balancer, Share
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.routing import Routing
from policies.pool.member import Member


class Balancers:
    """Each is made when the first call for it comes: of a thousand members that takes milliseconds."""

    def __init__(self, members: Sequence[Member], breakers: Sequence[CircuitBreaker], routing: Routing | None) -> None:
        self._members = members
        self._breakers = breakers
        self._routing = routing
        self._of_all: dict[Operation, Balancer | LoadBalancer] = {}
        self._of_pinned: dict[str, Balancer | LoadBalancer] = {}

    def of(self, call: Call) -> Balancer | LoadBalancer:
        """The one that chooses for this call. One that is pinned to a backend which is no member has no choice."""
        if call.resume is not None and call.resume.takers:
            return self._balancer([share for share in self._shares(call.operation) if self._takes(share, call.resume)])
        if not call.pinned:
            balancer = self._of_all.get(call.operation)
            if balancer is None:
                balancer = self._of_all[call.operation] = self._balancer(self._shares(call.operation))
            return balancer
        known = self._of_pinned.get(call.pinned)
        if known is None:
            # Also one without weight: it takes no new work, but nobody else has what it keeps.
            shares = [
                Share(index, max(1, member.weight), 0)
                for index, member in enumerate(self._members)
                if member.backend.name == call.pinned
            ]
            known = self._balancer(shares)
            if shares:
                self._of_pinned[call.pinned] = known
        return known

    def _takes(self, share: Share, broken: BrokenAnswer) -> bool:
        return self._members[share.index].backend.name in broken.takers

    def _shares(self, operation: Operation) -> list[Share]:
        able = [operation in member.backend.capabilities.operations for member in self._members]
        # What nobody claims to answer may go to anyone: the member's refusal says best what is wrong.
        return [
            Share(index, member.weight, member.priority)
            for index, member in enumerate(self._members)
            if able[index] or not any(able)
        ]

    def _balancer(self, shares: Sequence[Share]) -> Balancer | LoadBalancer:
        if self._routing is None:
            return Balancer(shares, self._breakers)
        return self._routing.balancer(shares, self._breakers)
