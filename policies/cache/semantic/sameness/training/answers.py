"""Pairs of whole answers as the head over them sees them: what the trained sentences make of their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary
from policies.cache.semantic.sameness.forms import SURE
from policies.cache.semantic.sameness.matching import (
    DISPLACED,
    bounded,
    candidates,
    match_features,
    match_table,
    most_odds,
    outline_of,
    relative,
)
from policies.cache.semantic.sameness.parts import AnswerParts
from policies.cache.semantic.sameness.training.batches import ReadPair, WordedPair, read
from policies.cache.semantic.sameness.training.pairs import AnswerPair
from policies.cache.semantic.sameness.words import word_features

_NO_EXAMPLE = AnswerPair("", "", False, 1.0, "")

Told = Callable[[Sequence[ReadPair]], NDArray[np.float64]]
"""Log odds of pairs of sentences."""
Matters = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""[parts], probabilities, of [parts, dimension]."""


class Matched(NamedTuple):
    """`features` [pairs, MATCH_FEATURES and FEATURES]; `told_apart` [pairs]: which a rule calls different, whatever the
    head says of them.
    """

    features: NDArray[np.float32]
    told_apart: NDArray[np.bool_]


def matched(
    pairs: Sequence[WordedPair],
    encoded: dict[str, EncodedPart],
    vocabulary: TokenVocabulary,
    told: Told,
    matters: Matters,
) -> Matched:
    """How the parts of each pair match."""
    answers = [(pair.left, pair.right) for pair in pairs]
    outlines = {part: outline_of(encoded[part]) for pair in answers for side in pair for part in side.texts}
    found = [
        candidates([outlines[one] for one in ones.texts], [outlines[other] for other in others.texts])
        for ones, others in answers
    ]
    sentences = {
        (ones.texts[match.one], others.texts[match.other])
        for (ones, others), matches in zip(answers, found, strict=True)
        for match in matches
    }
    listed = sorted(pair for pair in sentences if pair[0] != pair[1])
    made = [read(_worded([one], [other]), encoded, vocabulary) for one, other in listed]
    odds = dict(zip(listed, told(made), strict=True))

    def matter(side: AnswerParts) -> NDArray[np.float32]:
        return relative(matters(np.stack([encoded[part].vectors[-1] for part in side.texts])))

    rows, told_apart = [], []
    for pair, (ones, others), matches in zip(pairs, answers, found, strict=True):
        sentences_of = {match: (ones.texts[match.one], others.texts[match.other]) for match in matches}
        of_matches = {match: bounded(*both, float(odds.get(both, SURE))) for match, both in sentences_of.items()}
        known = match_table(of_matches, (ones, others)), (matter(ones), matter(others)), (ones, others)
        rows.append(np.concatenate((match_features(*known), pair.words)))
        told_apart.append(most_odds(*known) <= DISPLACED)
    return Matched(np.stack(rows), np.array(told_apart))


def _worded(ones: list[str], others: list[str]) -> WordedPair:
    left, right = (AnswerParts(side, [-1] * len(side)) for side in (ones, others))
    return WordedPair(left, right, word_features(ones, others), _NO_EXAMPLE)
