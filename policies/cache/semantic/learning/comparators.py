"""Do two answers say the same, and how sure is that? A probability; what reads the answers is beside the gateway.

Only a judge, where there is one, is asked here, and only about what is left in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from backends.charges.charge import Charge
from policies.cache.semantic.contracts import AnswerReader, EncoderBusy
from policies.cache.semantic.decision.logistic import DIFFERENT
from policies.cache.semantic.learning.rewording import Rewording
from policies.cache.semantic.sameness.parts import MAX_CHARS

SAME_FROM = 0.95
DIFFERENT_TO = 0.0175
"""What is told in a word, and what a judge is not asked about. Up to DIFFERENT_TO, as the card of the weights says, lie
0.3 % of the pairs that say the same, of kinds of facts never seen: nearly all that is served is right, so that right
answers called different would soon be most of what counts as a wrong hit. How often either errs is measured by
`tests.benchmarks.semantic.same_answers`.
"""

_ONE_FROM = 2.0
"""Log odds, by the decision and the comparison together."""


class AnswerVerdict(StrEnum):
    """What comparing two answers gave, where a word is wanted."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class AnswerJudge(Protocol):
    """Says whether two answers to a question mean the same, for a price."""

    @property
    def is_resting(self) -> bool:
        """Whether it may not be asked any more for now."""

    async def compare(
        self, question: str, left: str, right: str, told: Callable[[Charge], None] | None = None
    ) -> AnswerVerdict:
        """UNKNOWN where it cannot say, or may not be asked any more. Never raises. `told` is told of what it costs."""


class Comparison:
    """Compares answers with every means at hand; `judge` only where the reader is in doubt.

    `rewording`: where both answers are one upstream's; of two upstreams nobody expects the same words.
    """

    def __init__(self, reader: AnswerReader, judge: AnswerJudge | None, rewording: Rewording | None = None) -> None:
        self._reader = reader
        self._judge = judge
        self._rewording = rewording

    @property
    def has_judge(self) -> bool:
        """Whether what reading leaves open can be judged at all."""
        return self._judge is not None

    @property
    def is_resting(self) -> bool:
        """Whether there is a judge that may not be asked for now."""
        return self._judge is not None and self._judge.is_resting

    async def compare(
        self,
        question: str,
        left: str,
        right: str,
        *,
        may_ask: bool,
        told: Callable[[Charge], None] | None = None,
    ) -> float | None:
        """The probability that both answer the question alike, 0..1, calibrated for pairs of which as many do as do
        not; None where nobody can look at such answers. `may_ask`: the judge, who is believed; `told` is told of what
        that costs.

        Raises: EncoderBusy where they could be looked at, but not now: that says nothing of the answers.
        """
        busy: EncoderBusy | None = None
        sameness: float | None = None
        try:
            sameness = await self._read(left, right)
        except EncoderBusy as error:
            busy = error
        if self._judge is not None and may_ask and verdict_of(sameness) is AnswerVerdict.UNKNOWN:
            judged = await self._judge.compare(question, left, right, told)
            if judged is not AnswerVerdict.UNKNOWN:
                return float(judged is AnswerVerdict.SAME)
        if busy is not None:
            raise busy
        return sameness

    async def _read(self, left: str, right: str) -> float | None:
        if left == right:
            if self._rewording is not None:
                self._rewording.note_equal()
            return 1.0
        if max(len(left), len(right)) > MAX_CHARS:
            return None
        log_odds = await self._reader.compare(left, right)
        if log_odds is not None and self._rewording is not None:
            log_odds = self._rewording.weighed(log_odds)
        return probability_of(log_odds)


def probability_of(log_odds: float | None) -> float | None:
    """0..1; None of None."""
    return None if log_odds is None else 1 / (1 + math.exp(-log_odds))


def verdict_of(sameness: float | None) -> AnswerVerdict:
    """In a word."""
    if sameness is None:
        return AnswerVerdict.UNKNOWN
    if sameness >= SAME_FROM:
        return AnswerVerdict.SAME
    return AnswerVerdict.DIFFERENT if sameness <= DIFFERENT_TO else AnswerVerdict.UNKNOWN


def are_one(score: float, evidence: float) -> bool:
    """Whether two answers are one from here on: by the decision's log odds and those of the comparison together, but
    never where the comparison says that they differ. What is asked often is scored so high that whatever took an
    answer's place would become one with it.
    """
    return score + evidence > _ONE_FROM and evidence > DIFFERENT
