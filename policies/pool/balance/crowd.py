"""More members of one priority than are looked at for one call: a few of them stand for all.

Which ones costs the same for a hundred and for ten thousand members: those that hold most of the prompt, and some at
random (after Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random

from policies.pool.balance.candidate import Candidate, MayTake
from policies.pool.load.match import Match

MANY = 64
"""Up to so many members are all looked at."""
_LOOKS_PER_PLACE = 4
"""Members that are looked at for each that is wanted, where some are out of rotation."""


class CandidateCrowd:
    """All that may be chosen of one priority. Immutable."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self._by_slot = {candidate.replica.slot: candidate for candidate in candidates}
        self._slots = sum(1 << slot for slot in self._by_slot)
        self._weights = list(accumulate(candidate.weight for candidate in candidates))

    def deepest(self, match: Match, number: int, may_take: MayTake) -> list[Candidate]:
        """So many of those that hold most of a prompt."""
        found: list[Candidate] = []
        seen = 0
        looks = _LOOKS_PER_PLACE * number
        for slots, _ in match.levels:
            rest = slots & self._slots & ~seen
            seen |= slots
            while rest and looks and len(found) < number:
                lowest = rest & -rest
                rest ^= lowest
                looks -= 1
                candidate = self._by_slot[lowest.bit_length() - 1]
                if may_take(candidate):
                    found.append(candidate)
        return found

    def any(self, number: int, random: Random, may_take: MayTake) -> list[Candidate]:
        """So many at random, all alike."""
        size = len(self._candidates)
        drawn = (self._candidates[int(random.random() * size)] for _ in range(_LOOKS_PER_PLACE * number))
        return _distinct(drawn, number, may_take)

    def any_by_weight(self, number: int, random: Random, may_take: MayTake) -> list[Candidate]:
        """So many at random, by their weights."""
        drawn = (
            random.choices(self._candidates, cum_weights=self._weights)[0] for _ in range(_LOOKS_PER_PLACE * number)
        )
        return _distinct(drawn, number, may_take)


def _distinct(drawn: Iterable[Candidate], number: int, may_take: MayTake) -> list[Candidate]:
    found: list[Candidate] = []
    for candidate in drawn:
        if candidate not in found and may_take(candidate):
            found.append(candidate)
            if len(found) == number:
                break
    return found
