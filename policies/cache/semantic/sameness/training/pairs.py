"""A made-up pair of answers."""

from __future__ import annotations

from random import Random
from typing import NamedTuple


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
