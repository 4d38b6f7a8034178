"""A pool's balancers: one for each operation, one for each backend that calls are pinned to, and one for each answer
that broke off and is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.operations import Operation
from backends.protocol import Call
from backends.resume import BrokenAnswer
from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.by_weight import Balancer
from policies.pool.balance.share import Share
from policies.pool.load.routing import Routing
from policies.pool.place import Place


class Balancers:
    """Each is made when the first call for it comes: of a thousand members that takes milliseconds."""

    def __init__(self, places: Sequence[Place], routing: Routing | None) -> None:
        self._places = places
        self._routing = routing
        self._of_all: dict[Operation, Balancer | LoadBalancer] = {}
        self._of_pinned: dict[str, Balancer | LoadBalancer] = {}

    def of(self, call: Call) -> Balancer | LoadBalancer:
        """The one that chooses for this call. One that is pinned to a backend which is no member has no choice."""
        if call.resume is not None and call.resume.takers:
            return self._balancer([share for share in self._shares(call.operation) if _takes(share, call.resume)])
        if not call.pinned:
            balancer = self._of_all.get(call.operation)
            if balancer is None:
                balancer = self._of_all[call.operation] = self._balancer(self._shares(call.operation))
            return balancer
        known = self._of_pinned.get(call.pinned)
        if known is None:
            # Also one without weight: it takes no new work, but nobody else has what it keeps.
            shares = [
                Share(place, max(1, place.member.weight), 0)
                for place in self._places
                if place.member.backend.name == call.pinned
            ]
            known = self._balancer(shares)
            if shares:
                self._of_pinned[call.pinned] = known
        return known

    def _shares(self, operation: Operation) -> list[Share]:
        able = [place for place in self._places if operation in place.member.backend.capabilities.operations]
        # What nobody claims to answer may go to anyone: the member's refusal says best what is wrong.
        return [Share(place, place.member.weight, place.member.priority) for place in able or self._places]

    def _balancer(self, shares: Sequence[Share]) -> Balancer | LoadBalancer:
        if self._routing is None:
            return Balancer(shares)
        return self._routing.balancer(shares)


def _takes(share: Share, broken: BrokenAnswer) -> bool:
    return share.place.member.backend.name in broken.takers
