"""Counts of what a route's semantic cache has done: plain numbers, from which metrics are made when scraped."""

from __future__ import annotations

from collections import Counter

import msgspec

from policies.cache.semantic.learning.comparators import AnswerVerdict
from policies.cache.semantic.learning.labels import LabelSource

MAX_TIMES = 1000
"""So many durations are kept between two scrapes."""


class SemanticCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a period. Times are in seconds, by stage of a look-up."""

    results: Counter[str]
    labels: Counter[tuple[LabelSource, AnswerVerdict]]
    wrong_hits: int
    shadows: int
    shadow_tokens: int
    predictions: int
    judge_tokens: int
    dropped: int
    times: list[tuple[str, float]]


class SemanticTally:
    """Counts until `take`."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.results: Counter[str] = Counter()
        self.labels: Counter[tuple[LabelSource, AnswerVerdict]] = Counter()
        self.wrong_hits = 0
        self.shadows = 0
        self.shadow_tokens = 0
        self.predictions = 0
        self.dropped = 0
        self._times: list[tuple[str, float]] = []

    def took(self, stage: str, seconds: float) -> None:
        """Count the duration of one stage of a look-up."""
        if len(self._times) < MAX_TIMES:
            self._times.append((stage, seconds))

    def take(self, judge_tokens: int) -> SemanticCounts:
        """The counts so far; they start again at zero."""
        taken = SemanticCounts(
            results=self.results,
            labels=self.labels,
            wrong_hits=self.wrong_hits,
            shadows=self.shadows,
            shadow_tokens=self.shadow_tokens,
            predictions=self.predictions,
            judge_tokens=judge_tokens,
            dropped=self.dropped,
            times=self._times,
        )
        self._begin()
        return taken
