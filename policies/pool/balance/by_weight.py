"""Which of a pool's members takes the next attempt: by priority, then by weight, around those that are out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from policies.pool.balance.crowd import MANY
from policies.pool.balance.share import Share
from policies.pool.balance.strides import Strides
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.match import Match
from policies.pool.place import Place

_takes_part, _is_available = CircuitBreaker.takes_part, CircuitBreaker.is_available


class _Turn(msgspec.Struct):
    """A place, and what it has earned and not spent."""

    place: Place
    weight: int
    breaker: CircuitBreaker
    credit: int = 0


class Balancer:
    """Smooth weighted round robin within the lowest priority that has an available member.

    Each turn every candidate earns its weight and the richest takes the call and pays what all earned, so that the
    shares are exact over any full cycle and evenly spread within it; among very many, `strides.py` sees to that.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        """`shares` may leave places of the pool out."""
        in_rotation = [share for share in shares if share.weight > 0]
        self.places = tuple(share.place for share in in_rotation)
        groups = [
            [share for share in in_rotation if share.priority == priority]
            for priority in sorted({share.priority for share in in_rotation})
        ]
        self._groups = [Strides(group) if len(group) > MANY else _RoundRobin(group) for group in groups]

    def choose(self, tried: Collection[Place] = (), _match: Match | None = None) -> Place | None:
        """The place to ask; None if all are out of rotation or in `tried`. Turns look at no call."""
        for group in self._groups:
            # Where only members in a slow start are left, these will do.
            chosen = group.next(tried, _takes_part) or group.next(tried, _is_available)
            if chosen is not None:
                return chosen
        return None

    def retry_in_s(self) -> float | None:
        """Seconds until a place can be chosen again; None if none ever will be, all weights being 0."""
        return min((place.breaker.retry_in_s() for place in self.places), default=None)


class _RoundRobin:
    """The places of one priority, each with what it has earned."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._turns = [_Turn(share.place, share.weight, share.place.breaker) for share in shares]

    def next(self, tried: Collection[Place], is_candidate: Callable[[CircuitBreaker], bool]) -> Place | None:
        """The place whose turn it is; None if all are out of rotation or in `tried`."""
        earned = 0
        richest = None
        for turn in self._turns:
            # Who is settled is a candidate in any sense.
            if turn.place in tried or not (turn.breaker.is_settled or is_candidate(turn.breaker)):
                continue
            earned += turn.weight
            turn.credit += turn.weight
            if richest is None or turn.credit > richest.credit:
                richest = turn
        if richest is None:
            return None
        richest.credit -= earned
        return richest.place


def max_ejected(members: int, percent: int) -> int:
    """How many of a route's members may be out at once: `percent` of them, but always one if there are others."""
    return max(members * percent // 100, 1 if members > 1 else 0)
