"""Balancing by load: among the available members of the lowest priority, as a picker weighs them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from policies.pool.balance.by_weight import Share
from policies.pool.balance.candidate import Candidate
from policies.pool.balance.crowd import MANY, CandidateCrowd
from policies.pool.balance.pick import Picker, SamplingPicker
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.demand import Demand
from policies.pool.load.replica import Replica
from policies.price import Price


class LoadBalancer:
    """Chooses with a picker where there is a choice. Members are named by their index."""

    def __init__(
        self,
        shares: Sequence[Share],
        breakers: Sequence[CircuitBreaker],
        replicas: Sequence[Replica],
        picker: Picker,
        prices: Sequence[Price],
    ) -> None:
        """Breakers, replicas and prices are every member's, by index; `shares` may leave members out."""
        in_rotation = [share for share in shares if share.weight > 0]
        self._picker = picker
        self._groups = [
            [
                Candidate(at.index, at.weight, replicas[at.index], breakers[at.index], prices[at.index])
                for at in in_rotation
                if at.priority == priority
            ]
            for priority in sorted({share.priority for share in in_rotation})
        ]
        self._sampler = picker if isinstance(picker, SamplingPicker) else None
        self._crowds = [
            CandidateCrowd(group) if self._sampler is not None and len(group) > MANY else None for group in self._groups
        ]

    def choose(self, tried: Collection[int], demand: Demand | None) -> int | None:
        """The index of the member to ask; None if all are out of rotation or in `tried`."""
        assert demand is not None, "a call is read before it is balanced by load"
        for group, crowd in zip(self._groups, self._crowds, strict=True):
            if crowd is not None and (chosen := self._choose_of_many(crowd, tried, demand)) is not None:
                return chosen.index
            candidates: Sequence[Candidate] = group
            for each in group:
                if tried or not each.breaker.is_settled:
                    candidates = _left(group, tried)
                    break
            if len(candidates) > 1:
                return self._picker.pick(candidates, demand).index
            if candidates:
                return candidates[0].index
        return None

    def _choose_of_many(self, crowd: CandidateCrowd, tried: Collection[int], demand: Demand) -> Candidate | None:
        assert self._sampler is not None, "there are crowds only for it"

        def may_take(each: Candidate) -> bool:
            return each.index not in tried and (each.breaker.is_settled or each.breaker.takes_part())

        return self._sampler.pick_of_many(crowd, demand, may_take)

    def retry_in_s(self) -> float | None:
        """Seconds until a member can be chosen again; None if none ever will be, all weights being 0."""
        return min((each.breaker.retry_in_s() for group in self._groups for each in group), default=None)


def _left(group: Sequence[Candidate], tried: Collection[int]) -> Sequence[Candidate]:
    """Those of a group that may be asked."""
    untried = [each for each in group if each.index not in tried]
    # Where only members in a slow start are left, these will do.
    return [each for each in untried if each.breaker.takes_part()] or [
        each for each in untried if each.breaker.is_available()
    ]
