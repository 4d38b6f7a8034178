"""The backend behind the caches that are measured: it is asked at a price, and its answers can only be compared."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec


class Noise(msgspec.Struct, frozen=True):
    """How comparing answers fails. `alarms`: share of same answers taken for different ones, by either of two
    comparators that both have to say so. `passed`: share of different answers taken for the same."""

    alarms: float = 0.0
    passed: float = 0.0


class Upstream:
    """Answers by what a question means; an answer is known by a number that says nothing more."""

    def __init__(self, meanings: Sequence[str], random: Random, noise: Noise) -> None:
        self._meanings = meanings
        self._random = random
        self._noise = noise
        self.num_calls = 0

    def answer(self, query: int) -> int:
        """Ask; counted."""
        self.num_calls += 1
        return query

    def is_same(self, left: int, right: int) -> bool:
        """Whether two answers say the same, as far as a comparator can tell."""
        if self.is_right(left, right):
            alarms = self._noise.alarms
            return not (alarms and self._random.random() < alarms and self._random.random() < alarms)
        return bool(self._noise.passed) and self._random.random() < self._noise.passed

    def is_right(self, query: int, answer: int) -> bool:
        """Whether an answer fits a question in truth: for the replay alone."""
        return self._meanings[query] == self._meanings[answer]
