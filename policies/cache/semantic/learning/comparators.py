"""Do two answers say the same? Cheap looks at text, none of which is trusted alone when it says "different".

"Different" counts only where two looks of different kinds agree, or nothing but a number or a "not" differs: a
comparator that raises false alarms costs far more hits than one that says "don't know".
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec
import numpy as np

from backends.protocol import Charge
from policies.cache.semantic.contracts import Encoder, EncoderBusy
from policies.cache.semantic.decision.features import difference
from policies.cache.semantic.learning.answer_facts import NEGATION, facts_of, is_reordered
from policies.cache.semantic.learning.number_words import in_digits

_SAME_COSINE = 0.9
_DIFFERENT_COSINE = 0.6
_DIFFERENT_SHARE = 0.25
"""Share of common words, of all words of both, below which two texts have different subjects."""
_PIECE_CHARS = 800
_MAX_PIECES = 6
"""An encoder reads about so much of a text; longer answers are compared piece by piece, very long ones not at all."""
MAX_CHARS = _PIECE_CHARS * _MAX_PIECES
"""What is longer is equal to the letter or not known: reading 100 kB holds the event loop for a tenth of a second."""

_SPACE = re.compile(r"\s+")
_EDGES = ".!?,;: "
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_WORD = re.compile(r"\w+")
_CLAUSE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
_COURTESY = re.compile(
    r"sure|of course|certainly|absolutely|hello|hi|great question|good question|thank|happy|glad|hope|let me know|"
    r"here(?:'s| is| are)|(?:i )?found|any (?:other|more|further) questions|anything else|feel free|reach out"
)
_COURTEOUS = frozenset(
    _WORD.findall(
        "sure of course certainly absolutely hello hi great good thanks thank you for asking your the a this that s is "
        "are here what i found answer question details information steps let me us know if need want have any more "
        "other further additional questions anything else happy glad to help assist assistance hope it helps please "
        "feel free ask reach out with"
    )
)
"""Words of sentences that say nothing about the matter: those that have no others, and one that marks a courtesy."""
_CANNOT = re.compile(r"\bcan(?:not|['\u2019]t)\b", re.IGNORECASE)


class AnswerVerdict(StrEnum):
    """What comparing two answers gave."""

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
    """Compares answers with every means at hand; `judge` only where the others do not know."""

    def __init__(self, encoder: Encoder, judge: AnswerJudge | None) -> None:
        self._encoder = encoder
        self._judge = judge

    @property
    def has_judge(self) -> bool:
        """Whether what the cheap looks leave open can be judged at all."""
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
    ) -> AnswerVerdict:
        """Whether both answer the question alike. `may_ask`: the judge, if the cheap looks do not know; `told` is told
        of what is paid for that.
        """
        looked = await self._look_at(left, right, told)
        if looked is AnswerVerdict.UNKNOWN and self._judge is not None and may_ask:
            return await self._judge.compare(question, left, right, told)
        return looked

    async def _look_at(self, left: str, right: str, told: Callable[[Charge], None] | None) -> AnswerVerdict:
        """What form, words and vectors say; of very long texts they are not asked."""
        if left == right:
            return AnswerVerdict.SAME
        if max(len(left), len(right)) > MAX_CHARS:
            return AnswerVerdict.UNKNOWN
        structured = compare_json(left, right)
        if structured is AnswerVerdict.SAME or without_courtesies(left) == without_courtesies(right):
            return AnswerVerdict.SAME
        num_pieces = math.ceil(max(len(left), len(right)) / _PIECE_CHARS)
        one, other = facts_of(left), facts_of(right)
        has_same_facts = one.agrees_with(other) and not is_reordered(left, right)
        cosine = await self._cosine(left, right, num_pieces, told)
        is_near = has_same_facts and cosine is not None and cosine >= _SAME_COSINE
        if is_near and structured is AnswerVerdict.UNKNOWN and not turns_on_a_word(left, right):
            return AnswerVerdict.SAME
        doubts = (
            structured is AnswerVerdict.DIFFERENT,
            one.contradicts(other),
            cosine is not None and cosine < _DIFFERENT_COSINE,
            share_of_words(left, right) < _DIFFERENT_SHARE,
        )
        # Of one matter in very different words it is the look at the words that errs.
        is_sure = any(doubts[:2]) or not one.meets(other)
        if (sum(doubts) >= 2 and is_sure) or differ_in_facts_only(left, right):
            return AnswerVerdict.DIFFERENT
        return AnswerVerdict.UNKNOWN

    async def _cosine(
        self, left: str, right: str, num_pieces: int, told: Callable[[Charge], None] | None
    ) -> float | None:
        """The cosine of the least similar pieces; None where the encoder is too busy."""
        lowest = 1.0
        try:
            for index in range(num_pieces):
                one = await self._encoder.encode(_piece(left, index, num_pieces), told)
                other = await self._encoder.encode(_piece(right, index, num_pieces), told)
                lowest = min(lowest, float(np.dot(one, other)))
        except EncoderBusy:
            return None
        return lowest


def normal_form(text: str) -> str:
    """The text without what people do not read: width of letters, case, white space, punctuation at its ends."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip(_EDGES)


def without_courtesies(text: str) -> str:
    """The normal form without sentences at either end that only greet, lead in, or offer more help."""
    clauses = [clause for clause in _CLAUSE_END.split(text) if not clause.isspace() and clause]
    first, last = 0, len(clauses)
    while first < last and _is_courtesy(clauses[first]):
        first += 1
    while first < last and _is_courtesy(clauses[last - 1]):
        last -= 1
    return normal_form(" ".join(clauses[first:last]) or text)


def _is_courtesy(clause: str) -> bool:
    plain = clause.casefold()
    return _COURTESY.search(plain) is not None and all(word in _COURTEOUS for word in _WORD.findall(plain))


def compare_json(left: str, right: str) -> AnswerVerdict:
    """Two objects or lists are the same or they are not; of other texts this knows nothing."""
    values = []
    for text in (left, right):
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return AnswerVerdict.UNKNOWN
        if not isinstance(value, dict | list):
            return AnswerVerdict.UNKNOWN
        values.append(value)
    return AnswerVerdict.SAME if values[0] == values[1] else AnswerVerdict.DIFFERENT


def share_of_words(left: str, right: str) -> float:
    """Words in common as a share of all words of both, 0..1."""
    one, other = (set(_WORD.findall(text.casefold())) for text in (left, right))
    return len(one & other) / len(one | other) if one or other else 1.0


def turns_on_a_word(left: str, right: str) -> bool:
    """One says enable where the other says disable, or red for blue: a cosine hardly sees it."""
    words = difference(left, right)
    return words.opposed or words.swapped


def differ_in_facts_only(left: str, right: str) -> bool:
    """The same sentence about other numbers, or once with and once without a "not"."""
    masked = [
        normal_form(_NUMBER.sub("#", NEGATION.sub(" ", _CANNOT.sub("can", in_digits(text))))) for text in (left, right)
    ]
    return masked[0] == masked[1] and normal_form(left) != normal_form(right)


def _piece(text: str, index: int, num_pieces: int) -> str:
    return text[len(text) * index // num_pieces : len(text) * (index + 1) // num_pieces] or " "
