"""How many tokens to propose for each sequence of a step: as many as make the most tokens a second, all together.

With acceptance a per position, k proposals bring a + .. + a^k tokens more on average (Leviathan et al., 2023, section
3.1). Each is a row more in the target's step; those of the draft model cost as many of its steps as the longest of them
has, whoever else is in them. So what one sequence is worth drafting for depends on all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backends.engine.speculation.step_time import StepTimeFit, TargetTimeFit

_DOUBT = 1.1
"""What guesses take counts so many times: of many estimates those that look best are mostly too good."""


@dataclass(frozen=True, slots=True)
class Chance:
    """What could be proposed for a sequence: `num_ready` tokens that are at hand and cost nothing to make, or instead
    up to `num_draft` of the draft model. Rates are acceptances a position, 0..1.
    """

    num_ready: int = 0
    ready_rate: float = 0.0
    num_draft: int = 0
    draft_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """For each sequence how many tokens that are at hand to propose, and how many to draft; never both.

    `least`: the probability that all drafts so far are accepted below which one more takes longer than it saves.
    """

    ready: list[int]
    drafts: list[int]
    least: list[float]

    @property
    def has_drafts(self) -> bool:
        """Whether the draft model is to be run."""
        return any(self.drafts)


def expected_tokens(rate: float, number: int) -> float:
    """How many of `number` proposals are accepted in the mean."""
    total, power = 0.0, 1.0
    for _ in range(number):
        power *= rate
        total += power
    return total


def best_lengths(
    chances: Sequence[Chance], *, num_sequences: int, target: TargetTimeFit, draft: StepTimeFit
) -> Lengths:
    """The best lengths in a step of `num_sequences`, those of `chances` and others that propose nothing.

    Where nothing is known of the target's time, all that there is of the likelier kind. `draft` is the time of the
    draft model's steps over its sequences.
    """
    if not target.is_known:
        return _all(chances)
    proposal_s = _DOUBT * target.proposal_s
    ready = [0] * len(chances)
    tokens, seconds = float(num_sequences), target.predict(num_sequences, 0)
    for chance, place in sorted(_ready(chances), reverse=True):
        if chance * seconds <= proposal_s * tokens:
            break
        tokens, seconds = tokens + chance, seconds + proposal_s
        ready[place] += 1
    best_rate = tokens / seconds
    best, rate = Lengths(ready, [0] * len(chances), [0.0] * len(chances)), best_rate
    for most in range(1, max((one.num_draft for one in chances), default=0) + 1):
        tried = _Drafts(chances, ready, most, rate, proposal_s, draft)
        if not tried.members:
            continue
        gained = (tokens + tried.more_tokens) / (seconds + tried.more_s)
        if gained > best_rate:
            best_rate, best = gained, tried.lengths(gained, proposal_s, draft)
    return best


class _Drafts:
    """Up to `most` drafts for each sequence that they are worth their rows for, at `rate` tokens a second."""

    def __init__(
        self,
        chances: Sequence[Chance],
        ready: Sequence[int],
        most: int,
        rate: float,
        proposal_s: float,
        draft: StepTimeFit,
    ) -> None:
        self._chances, self._ready, self._most = chances, ready, most
        self.members: list[int] = []
        self.more_tokens = self.more_s = 0.0
        ready_cost, draft_cost = rate * proposal_s, rate * (proposal_s + _DOUBT * draft.row_s)
        for place, (one, num_ready) in enumerate(zip(chances, ready, strict=True)):
            number = min(most, one.num_draft)
            if not number:
                continue
            drafted, at_hand = expected_tokens(one.draft_rate, number), expected_tokens(one.ready_rate, num_ready)
            if drafted - number * draft_cost > at_hand - num_ready * ready_cost:
                self.members.append(place)
                self.more_tokens += drafted - at_hand
                self.more_s += (number - num_ready) * proposal_s
        if self.members:
            self.more_s += _DOUBT * most * draft.predict(len(self.members))

    def lengths(self, rate: float, proposal_s: float, draft: StepTimeFit) -> Lengths:
        """At `rate` tokens a second."""
        ready, drafts, least = list(self._ready), [0] * len(self._ready), [0.0] * len(self._ready)
        more_s = proposal_s + _DOUBT * draft.predict(len(self.members)) / len(self.members)
        for place in self.members:
            one = self._chances[place]
            ready[place], drafts[place] = 0, min(self._most, one.num_draft)
            least[place] = more_s * rate / one.draft_rate
        return Lengths(ready, drafts, least)


def _all(chances: Sequence[Chance]) -> Lengths:
    is_drafted = [one.num_draft > 0 and (one.draft_rate > one.ready_rate or not one.num_ready) for one in chances]
    ready = [0 if drafted else one.num_ready for one, drafted in zip(chances, is_drafted, strict=True)]
    drafts = [one.num_draft if drafted else 0 for one, drafted in zip(chances, is_drafted, strict=True)]
    return Lengths(ready, drafts, [0.0] * len(chances))


def _ready(chances: Sequence[Chance]) -> Iterable[tuple[float, int]]:
    """The probability of each token at hand that it is accepted, and whose it is."""
    for place, one in enumerate(chances):
        power = 1.0
        for _ in range(one.num_ready):
            power *= one.ready_rate
            yield power, place
