"""The backend behind the caches that are measured: it is asked at a price, and its answers can only be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import msgspec

_CHANGING_SHARE = 0.1


class Noise(msgspec.Struct, frozen=True):
    """How comparing answers fails. `alarms`: share of same answers taken for different ones, by either of two
    comparators that both have to say so. `passed`: share of different answers taken for the same. `missed`: share of
    same answers that are not recognised, and count as different.

    `distance`: instead of all this, comparisons are probabilities. Their log odds are normal, with so many standard
    deviations between same and different answers, which is calibrated at even odds. At 3.1 four in five of the same
    have more than 0.9, and one in a hundred of the others.
    """

    alarms: float = 0.0
    passed: float = 0.0
    missed: float = 0.0
    distance: float | None = None


class Upstream:
    """Answers by what a question means; an answer is known by the question's number, which says nothing more.

    `changes_at`: from that question of the stream on, a tenth of all meanings have another answer.
    """

    def __init__(self, meanings: Sequence[str], random: Random, noise: Noise, *, changes_at: int | None = None) -> None:
        self._meanings = meanings
        self._random = random
        self._noise = noise
        self._changes_at = changes_at
        self._num_begun = 0
        self._said: dict[int, str] = {}
        self.num_calls = 0
        kinds = sorted(set(meanings))
        Random(len(kinds)).shuffle(kinds)
        self._changing = frozenset(kinds[: math.ceil(_CHANGING_SHARE * len(kinds))])

    def begin(self) -> None:
        """The next question of the stream is about to come."""
        self._num_begun += 1

    def answer(self, query: int) -> int:
        """Ask; counted. What was said to that question before is forgotten."""
        self.num_calls += 1
        self._said[query] = self._meaning(query)
        return query

    def is_same(self, left: int, right: int) -> bool:
        """Whether two answers say the same, as far as a comparator can tell that has to say yes or no."""
        return self.compare(left, right) > 0.5

    def compare(self, left: int, right: int) -> float:
        """How likely two answers say the same, 0..1, as far as a comparator can tell."""
        is_same = self._what_it_said(left) == self._what_it_said(right)
        distance = self._noise.distance
        if distance is not None:
            odds = self._random.gauss((distance if is_same else -distance) * distance / 2, distance)
            return 1.0 / (1.0 + math.exp(-odds))
        if is_same:
            alarms, missed = self._noise.alarms, self._noise.missed
            is_alarmed = bool(alarms) and self._random.random() < alarms and self._random.random() < alarms
            return float(not is_alarmed and not (missed and self._random.random() < missed))
        return float(bool(self._noise.passed) and self._random.random() < self._noise.passed)

    def worded_most_like(self, query: int, others: Sequence[int]) -> int:
        """Of answers that say the same, the one whose words are nearest to the answer to that question: the first, as
        they have no words.
        """
        return others[0]

    def share_words(self, left: int, right: int) -> bool:
        """Whether it pays to compare two answers: always, as they have no words."""
        return True

    def is_right(self, query: int, answer: int) -> bool:
        """Whether an answer fits a question in truth, now: for the replay alone."""
        return self._meaning(query) == self._what_it_said(answer)

    def _what_it_said(self, query: int) -> str:
        return self._said.get(query, self._meanings[query])

    def _meaning(self, query: int) -> str:
        meaning = self._meanings[query]
        has_changed = self._changes_at is not None and self._num_begun >= self._changes_at
        return f"{meaning}, changed" if has_changed and meaning in self._changing else meaning
