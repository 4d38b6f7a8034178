"""Which of several available members takes a call: one small class for each way of weighing them.

They choose among the members of one priority; `by_load.py` says who those are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from backends.prompts.rendezvous import rendezvous
from policies.pool.balance.candidate import Candidate, MayTake
from policies.pool.balance.crowd import CandidateCrowd
from policies.pool.load.latency_model import Doubt
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica
from policies.pool.place import Place

_TURNS_EVERY = 8
"""Decisions after which is looked for who has been passed over for long."""


class Picker(Protocol):
    """A way of choosing."""

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """One of the candidates, of which there are two or more."""


@runtime_checkable
class SamplingPicker(Picker, Protocol):
    """A way of choosing that need not look at all."""

    def pick_of_many(self, crowd: CandidateCrowd, match: Match, may_take: MayTake) -> Candidate | None:
        """One of those that may be taken; None where too few of those that were looked at may be."""


class PickerCounters:
    """Decisions that were made without a prediction, by the reason."""

    __slots__ = ("without_prediction",)

    def __init__(self) -> None:
        self.without_prediction: dict[Doubt, int] = {"unseen": 0, "nonsense": 0}

    def can_predict(self, candidates: Sequence[Candidate]) -> bool:
        """Whether every candidate's model can be asked; else the decision is counted."""
        for candidate in candidates:
            doubt = candidate.replica.model.doubt
            if doubt is not None:
                self.without_prediction[doubt] += 1
                return False
        return True

    def take(self) -> dict[Doubt, int]:
        """The counts since the last time."""
        taken = {doubt: number for doubt, number in self.without_prediction.items() if number}
        self.without_prediction = dict.fromkeys(self.without_prediction, 0)
        return taken


class LeastRequest:
    """The fewest attempts in flight per weight."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """One of those with the least."""
        costs = [(candidate.replica.in_flight.requests + 1) / candidate.weight for candidate in candidates]
        return least(candidates, costs, match.demand.session, self._random)


class PowerOfTwo:
    """Two at random, by weight, and of these the one with fewer attempts in flight (Mitzenmacher, 2001)."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """The better of the two."""
        weights = [candidate.weight for candidate in candidates]
        first = self._random.choices(candidates, weights)[0]
        others = [candidate for candidate in candidates if candidate is not first]
        second = self._random.choices(others, [candidate.weight for candidate in others])[0]
        return _idler(first, second)

    def pick_of_many(self, crowd: CandidateCrowd, match: Match, may_take: MayTake) -> Candidate | None:
        """See `SamplingPicker`."""
        two = crowd.any_by_weight(2, self._random, may_take)
        return _idler(*two) if len(two) == 2 else None


class LeastTokens:
    """The fewest prompt tokens ahead, per weight, whatever the backend holds of the prompt."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """One of those with the least."""
        tokens = match.demand.tokens
        costs = [(tokens_ahead(candidate.replica) + tokens) / candidate.weight for candidate in candidates]
        return least(candidates, costs, match.demand.session, self._random)


class ConsistentHash:
    """The same member for the same beginning of a prompt, by rendezvous, unless it has 1.25 times its share in flight.

    Needs no state that gateways would have to share (Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded
    Loads", 2017, over weighted rendezvous hashing; written from the papers).
    """

    _BOUND = 1.25

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """The first in the prompt's own order that is not over the bound."""
        in_flight = sum(candidate.replica.in_flight.requests for candidate in candidates) + 1
        share = self._BOUND * in_flight / sum(candidate.weight for candidate in candidates)
        return next(
            candidate
            for candidate in ranked(candidates, match.demand.key)
            if candidate.replica.in_flight.requests < math.ceil(share * candidate.weight)
        )


class Latency:
    """The shortest predicted time to a whole answer; the fewest attempts in flight where nothing can be predicted."""

    def __init__(self, random: Random, counters: PickerCounters) -> None:
        self._counters = counters
        self._random = random
        self._unknown = LeastRequest(random)
        self._turns = Turns()

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """One of those with the least."""
        if not self._counters.can_predict(candidates):
            return self._unknown.pick(candidates, match)
        if (waiting := self._turns.due(candidates)) is not None:
            return waiting
        tokens = match.demand.tokens
        costs = []
        for candidate in candidates:
            model = candidate.replica.model
            first_s = candidate.replica.predict(tokens, tokens)
            costs.append(first_s + model.seconds_between_tokens * model.output_tokens)
        return self._turns.taken(least(candidates, costs, match.demand.session, self._random))


class LeastCost:
    """The lowest price for the call, kept beginnings at their own; among equals the fewest prompt tokens ahead."""

    def __init__(self, random: Random) -> None:
        self._among_equals = LeastTokens(random)

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """One of those with the least."""
        tokens = match.demand.tokens
        prices = [
            each.price.expected(tokens, match.uncached(each.replica.slot), each.replica.model.output_tokens)
            for each in candidates
        ]
        lowest = min(prices) * (1 + 1e-9)
        cheapest = [candidate for candidate, price in zip(candidates, prices, strict=True) if price <= lowest]
        return self._among_equals.pick(cheapest, match) if len(cheapest) > 1 else cheapest[0]


class PredictedCost:
    """The least of: predicted time to the first token, plus `eta` times what its uncached tokens take to compute (which
    others wait for), plus `gamma` times what its decoding slows the streams there.

    Counts tokens instead of seconds while a candidate's predictions cannot be used.
    """

    _READ_S_PER_TOKEN = 35e-9
    """What a held token costs a step of decoding: 8B in bf16 at an H200's bandwidth, derived."""
    _MAX_OUTPUT = 512.0
    _DEGRADED = 8.0
    """What the cost of a degraded member counts: its first tokens come later than 4 to 10 times what was predicted."""
    _DEEPEST, _OTHERS = 4, 4

    def __init__(self, random: Random, counters: PickerCounters, *, eta: float = 2.0, gamma: float = 0.02) -> None:
        self._random = random
        self._counters = counters
        self._eta = eta
        self._read_s = gamma * self._READ_S_PER_TOKEN
        self._turns = Turns()

    def pick(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """One of those with the least."""
        tokens, eta, read_s = match.demand.tokens, self._eta, self._read_s
        costs = []
        for candidate in candidates:
            replica = candidate.replica
            model = replica.model
            if model.doubt is not None:
                self._counters.without_prediction[model.doubt] += 1
                return self._fewest_tokens(candidates, match)
            uncached = match.uncached(replica.slot)
            output = model.output_tokens
            if output > self._MAX_OUTPUT:
                output = self._MAX_OUTPUT
            cost = (
                replica.predict(tokens, uncached)
                + eta * model.seconds_per_token * uncached
                + read_s * (replica.in_flight.held_tokens + tokens) * output
            )
            if model.is_degraded:
                cost *= self._DEGRADED
            costs.append(cost)
        turns = self._turns
        if not turns.decisions % _TURNS_EVERY and (waiting := turns.due(candidates)) is not None:
            return waiting
        return turns.taken(least(candidates, costs, match.demand.session, self._random))

    def pick_of_many(self, crowd: CandidateCrowd, match: Match, may_take: MayTake) -> Candidate | None:
        """The same of those that hold most of the prompt, and some at random."""
        few = crowd.deepest(match, self._DEEPEST, may_take)
        few += [each for each in crowd.any(self._OTHERS, self._random, may_take) if each not in few]
        return self.pick(few, match) if len(few) > 1 else None

    def _fewest_tokens(self, candidates: Sequence[Candidate], match: Match) -> Candidate:
        """What takes the least work, where seconds are not known."""
        own = 1 + self._eta
        costs = []
        for candidate in candidates:
            replica = candidate.replica
            load = replica.in_flight
            costs.append(load.waiting_tokens + load.whole_tokens + own * match.uncached(replica.slot))
        return least(candidates, costs, match.demand.session, self._random)


class Turns:
    """Lets a member that was passed over 256 times in a row, and is idle, take a call: how else would anybody learn
    that it is fast again?"""

    _PATIENCE = 256

    def __init__(self) -> None:
        self.decisions = 0
        self._taken_at: dict[Place, int] = {}

    def due(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """A member whose turn it is."""
        latest = self.decisions - self._PATIENCE
        for candidate in candidates:
            if self._taken_at.get(candidate.place, 0) < latest and not candidate.replica.in_flight.requests:
                return self.taken(candidate)
        return None

    def taken(self, chosen: Candidate) -> Candidate:
        """Note who was chosen, and give it back."""
        self.decisions += 1
        self._taken_at[chosen.place] = self.decisions
        return chosen


def _idler(first: Candidate, second: Candidate) -> Candidate:
    """That with fewer attempts in flight."""
    return min(first, second, key=lambda candidate: candidate.replica.in_flight.requests)


def tokens_ahead(replica: Replica) -> int:
    """Prompt tokens that a new call may have to wait for."""
    return replica.in_flight.waiting_tokens + replica.in_flight.whole_tokens


def least(candidates: Sequence[Candidate], costs: Sequence[float], session: bytes, random: Random) -> Candidate:
    """A candidate of the least cost. Among those within 1 % of it the session decides, else chance."""
    limit = min(costs) * 1.01
    equal = []
    for candidate, cost in zip(candidates, costs, strict=True):
        if cost <= limit:
            equal.append(candidate)
    if len(equal) == 1:
        return equal[0]
    return ranked(equal, session)[0] if session else equal[int(random.random() * len(equal))]


def ranked(candidates: Sequence[Candidate], key: bytes) -> list[Candidate]:
    """The candidates in an order that follows from the key and their names alone, heavier ones rather in front."""
    score = rendezvous(key)
    return sorted(candidates, key=lambda each: score(each.replica.name, each.weight), reverse=True)
