"""Pairs of answers that say the same or do not: as they are made, and as the heads are shown them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

Meanings = Sequence[Sequence[str]]
"""Texts by what they say. Those of the first meaning say the same; every other one says something else than the first.
"""


class MadePair(NamedTuple):
    """Two answers, whether they say the same, the kinds of their facts, and how they were made."""

    left: str
    right: str
    is_same: bool
    kinds: frozenset[str]
    recipe: str

    def turned(self, random: Random) -> MadePair:
        """In either order."""
        return self._replace(left=self.right, right=self.left) if random.random() < 0.5 else self


class AnswerPair(NamedTuple):
    """A pair and how much it counts."""

    left: str
    right: str
    is_same: bool
    weight: float
    source: str


Family = list[AnswerPair]
"""Pairs of few texts: reading the texts is what costs, so each is held against several."""


def family_of(meanings: Meanings, source: str) -> Family:
    """Each text with all others, but for those of two meanings that are not the first. It counts as much as so many
    pairs as its texts would make, and half of that for those that say the same.
    """
    texts = [(text, number) for number, said in enumerate(meanings) for text in said]
    pairs = [
        (left, right, one == other)
        for (left, one), (right, other) in combinations(texts, 2)
        if left != right and (one == other or 0 in (one, other))
    ]
    counts = [sum(is_same is which for *_, is_same in pairs) for which in (False, True)]
    weights = [len(texts) / 4 / count if count else 0.0 for count in counts]
    return [AnswerPair(left, right, is_same, weights[is_same], source) for left, right, is_same in pairs]
