"""Which of a pool's members takes the next attempt: by priority, then by weight, around those that are out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from policies.pool.balance.crowd import MANY
from policies.pool.balance.strides import Strides
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.demand import Demand

_Group = Sequence[tuple[int, int, CircuitBreaker]]
_takes_part, _is_available = CircuitBreaker.takes_part, CircuitBreaker.is_available


class Share(msgspec.Struct, frozen=True):
    """A member's part of the traffic. Lower priorities are asked first; weight 0 is never chosen."""

    index: int
    weight: int
    priority: int


class Balancer:
    """Smooth weighted round robin within the lowest priority that has an available member.

    Each turn every candidate earns its weight and the richest takes the call and pays what all earned, so that the
    shares are exact over any full cycle and evenly spread within it; among very many, `strides.py` sees to that.
    Members are named by their index.
    """

    def __init__(self, shares: Sequence[Share], breakers: Sequence[CircuitBreaker]) -> None:
        """`breakers` holds every member's, by index; `shares` may leave members out."""
        in_rotation = [share for share in shares if share.weight > 0]
        self._groups = [
            [(share.index, share.weight, breakers[share.index]) for share in in_rotation if share.priority == priority]
            for priority in sorted({share.priority for share in in_rotation})
        ]
        self._credit = [0] * len(breakers)
        self._strides = [Strides(group) if len(group) > MANY else None for group in self._groups]

    def choose(self, tried: Collection[int] = (), _demand: Demand | None = None) -> int | None:
        """The index of the member to ask; None if all are out of rotation or in `tried`. Turns look at no call."""
        for group, strides in zip(self._groups, self._strides, strict=True):
            # Where only members in a slow start are left, these will do.
            if strides is not None:
                chosen = strides.next(tried, _takes_part)
                if chosen is None:
                    chosen = strides.next(tried, _is_available)
            else:
                chosen = self._richest(group, tried, _takes_part)
                if chosen is None:
                    chosen = self._richest(group, tried, _is_available)
            if chosen is not None:
                return chosen
        return None

    def retry_in_s(self) -> float | None:
        """Seconds until a member can be chosen again; None if none ever will be, all weights being 0."""
        waits = [breaker.retry_in_s() for group in self._groups for _, _, breaker in group]
        return min(waits, default=None)

    def _richest(
        self, group: _Group, tried: Collection[int], is_candidate: Callable[[CircuitBreaker], bool]
    ) -> int | None:
        credit = self._credit
        earned = 0
        chosen = None
        for index, weight, breaker in group:
            # Who is settled is a candidate in any sense.
            if index in tried or not (breaker.is_settled or is_candidate(breaker)):
                continue
            earned += weight
            credit[index] += weight
            if chosen is None or credit[index] > credit[chosen]:
                chosen = index
        if chosen is not None:
            credit[chosen] -= earned
        return chosen


def max_ejected(members: int, percent: int) -> int:
    """How many of a route's members may be out at once: `percent` of them, but always one if there are others."""
    return max(members * percent // 100, 1 if members > 1 else 0)
