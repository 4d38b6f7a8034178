"""Balancing by load: among the available members of the lowest priority, as a picker weighs them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from policies.pool.balance.candidate import Candidate
from policies.pool.balance.crowd import MANY, CandidateCrowd
from policies.pool.balance.pick import Picker, SamplingPicker
from policies.pool.balance.share import Share
from policies.pool.load.match import Match
from policies.pool.place import Place
from policies.prices.price import Tariff, named_price, per_token

_FREE = named_price("", Tariff(per_token(0, 0)))
"""Where prices are not asked for."""


class LoadBalancer:
    """Chooses with a picker where there is a choice."""

    def __init__(self, shares: Sequence[Share], picker: Picker) -> None:
        """`shares` may leave places of the pool out."""
        in_rotation = [share for share in shares if share.weight > 0]
        self.places = tuple(share.place for share in in_rotation)
        self._picker = picker
        self._groups = [
            [_candidate(share) for share in in_rotation if share.priority == priority]
            for priority in sorted({share.priority for share in in_rotation})
        ]
        self._sampler = picker if isinstance(picker, SamplingPicker) else None
        self._crowds = [
            CandidateCrowd(group) if self._sampler is not None and len(group) > MANY else None for group in self._groups
        ]

    def choose(self, tried: Collection[Place], match: Match | None) -> Place | None:
        """The place to ask; None if all are out of rotation or in `tried`."""
        assert match is not None, "a call is read before it is balanced by load"
        for group, crowd in zip(self._groups, self._crowds, strict=True):
            if crowd is not None and (chosen := self._choose_of_many(crowd, tried, match)) is not None:
                return chosen.place
            candidates: Sequence[Candidate] = group
            for each in group:
                if tried or not each.breaker.is_settled:
                    candidates = _left(group, tried)
                    break
            if len(candidates) > 1:
                return self._picker.pick(candidates, match).place
            if candidates:
                return candidates[0].place
        return None

    def retry_in_s(self) -> float | None:
        """Seconds until a place can be chosen again; None if none ever will be, all weights being 0."""
        return min((each.breaker.retry_in_s() for group in self._groups for each in group), default=None)

    def _choose_of_many(self, crowd: CandidateCrowd, tried: Collection[Place], match: Match) -> Candidate | None:
        assert self._sampler is not None, "there are crowds only for it"

        def may_take(each: Candidate) -> bool:
            return each.place not in tried and (each.breaker.is_settled or each.breaker.takes_part())

        return self._sampler.pick_of_many(crowd, match, may_take)


def _candidate(share: Share) -> Candidate:
    place = share.place
    return Candidate(place, share.weight, place.counted, place.breaker, place.member.price_of("") or _FREE)


def _left(group: Sequence[Candidate], tried: Collection[Place]) -> Sequence[Candidate]:
    """Those of a group that may be asked."""
    untried = [each for each in group if each.place not in tried]
    # Where only members in a slow start are left, these will do.
    return [each for each in untried if each.breaker.takes_part()] or [
        each for each in untried if each.breaker.is_available()
    ]
