"""The heads over whole answers, fitted on what an adapted encoder and the head over its tokens make of their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary
from policies.cache.semantic.sameness.head import HeadScores
from policies.cache.semantic.sameness.parts import texts_of
from policies.cache.semantic.sameness.training.adapted import AdaptedBert
from policies.cache.semantic.sameness.training.answers import Matched, matched
from policies.cache.semantic.sameness.training.batches import WordedPair, encode_parts, worded
from policies.cache.semantic.sameness.training.examples import AnswerPairs
from policies.cache.semantic.sameness.training.facts.written import wrapping
from policies.cache.semantic.sameness.training.fit import (
    Scale,
    bend_of,
    fit_layers,
    fit_matters,
    layers_log_odds,
    scale_of,
    token_log_odds,
    words_of,
)
from policies.cache.semantic.sameness.training.generator import Generator
from policies.cache.semantic.sameness.training.network import Network
from policies.cache.semantic.sameness.training.pairs import AnswerPair
from policies.cache.semantic.sameness.training.scores import scores_of
from policies.cache.semantic.sameness.words import word_features

_LAYER_EPOCHS = 40
_SAYS, _NAMES, _SAYS_NOTHING = 0.55, 0.05, 0.4
"""Weights of all sentences that say something of the matter, of all headings that name it, of all else: what matters
and is taken for a greeting makes answers the same that are not.
"""
_OTHER_MATTERS = 4
"""Of another matter for each that differs in a fact. Of what a cache compares nearly all that differs is."""
_PAIRS_OF_PARTS = 10_000
"""Of sentences, whose parts all say something of the matter."""


class AnswerHeads(NamedTuple):
    """`arrays` as in the weights; by head what bends its log odds, and how well it does on the test set."""

    arrays: dict[str, NDArray[np.float32]]
    bends: dict[str, tuple[float, float]]
    scores: dict[str, HeadScores]


def fit_answers(
    encoder: AdaptedBert,
    network: Network,
    sets: AnswerPairs,
    part_scale: Scale,
    vocabulary: TokenVocabulary,
    *,
    seed: int,
    note: Callable[[str], None],
) -> AnswerHeads:
    """The head that knows which parts matter, that over answers by their parts, and that by words alone."""
    answers = [worded(pairs) for pairs in sets[1:]]
    note(f"pairs of answers: {', '.join(str(len(one)) for one in answers)}")
    words = Generator(Random(0), frozenset())
    says_nothing, named = (
        [part for line in lines for part in texts_of(line)]
        for lines in ((*words.says_nothing(), *wrapping()), words.sections())
    )
    sentences = [pair for family in sets.sentences for pair in family][:_PAIRS_OF_PARTS]
    encoded = encode_parts([sentences, *sets[1:]], [*says_nothing, *named], encoder.embed_parts, note)
    matters = fit_matters(*_parts([*sentences, *sets.answers], named, says_nothing, encoded))

    def matched_of(pairs: Sequence[WordedPair]) -> Matched:
        return matched(
            pairs,
            encoded,
            vocabulary,
            lambda pairs: token_log_odds(network, pairs, part_scale),
            lambda vectors: 1 / (1 + np.exp(-(vectors.astype(np.float32) @ matters[0][0] + matters[1]))),
        )

    heads = AnswerHeads({"matters.weight": matters[0], "matters.bias": matters[1]}, {}, {})
    left = [_left_to_head(matched_of(one), one) for one in answers]
    others = np.tile(matched_of(_of_other_matters(answers[1])).features, (_OTHER_MATTERS, 1))
    _fit_head(heads, "answer", left, others, seed)
    _fit_head(heads, "words", [_Seen(words_of(one), one) for one in answers], None, seed)
    return heads


class _Seen(NamedTuple):
    """`features` [pairs, features]: what a head sees of these."""

    features: NDArray[np.float32]
    pairs: list[WordedPair]

    @property
    def is_same(self) -> NDArray[np.bool_]:
        """[pairs]."""
        return np.array([pair.example.is_same for pair in self.pairs])


def _left_to_head(seen: Matched, pairs: Sequence[WordedPair]) -> _Seen:
    """Without those that a rule calls different, whatever the head says: they look as if they were the same, and would
    make it doubt what is.
    """
    is_left = ~seen.told_apart
    return _Seen(seen.features[is_left], [pair for pair, is_kept in zip(pairs, is_left, strict=True) if is_kept])


def _fit_head(
    heads: AnswerHeads, name: str, sets: Sequence[_Seen], others: NDArray[np.float32] | None, seed: int
) -> None:
    """To the first set; bent to be calibrated on the second and on `others`, which differ; tested on the third."""
    fitted, calibration, test = sets
    scale = scale_of(fitted.features)
    layers = fit_layers(fitted.features, fitted.pairs, scale, epochs=_LAYER_EPOCHS, seed=seed)
    heads.arrays.update({f"{name}.mean": scale.mean, f"{name}.deviation": scale.deviation})
    heads.arrays.update({f"{name}.0.weight": layers.hidden, f"{name}.0.bias": layers.hidden_bias})
    heads.arrays.update({f"{name}.1.weight": layers.out, f"{name}.1.bias": layers.out_bias})
    odds, tested = (layers_log_odds(layers, each.features, scale) for each in (calibration, test))
    same = calibration.is_same
    if others is not None:
        odds = np.concatenate((odds, layers_log_odds(layers, others, scale)))
        same = np.concatenate((same, np.zeros(len(others), bool)))
    slope, intercept = heads.bends[name] = bend_of(odds, same)
    heads.scores[name] = scores_of(slope * tested + intercept, test.is_same)


def _of_other_matters(pairs: Sequence[WordedPair]) -> list[WordedPair]:
    """Those that differ, their right sides passed on among them."""
    differing = [pair for pair in pairs if not pair.example.is_same]
    rights = [pair.right for pair in differing]
    Random(5).shuffle(rights)
    return [
        WordedPair(pair.left, right, word_features(pair.left.texts, right.texts), pair.example)
        for pair, right in zip(differing, rights, strict=True)
    ]


def _parts(
    pairs: Sequence[AnswerPair], named: list[str], says_nothing: list[str], encoded: dict[str, EncodedPart]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[parts, dimension] and [parts]: each part's vector and its weight, below 0 where it says nothing of the matter.
    Headings that name what is spoken of do say something, and are few.
    """
    says = {part for pair in pairs for side in (pair.left, pair.right) for part in texts_of(side)}
    kinds = ((sorted(says - {*named, *says_nothing}), _SAYS), (named, _NAMES), (says_nothing, -_SAYS_NOTHING))
    vectors = np.stack([encoded[part].vectors[-1] for parts, _ in kinds for part in parts]).astype(np.float32)
    return vectors, np.concatenate([np.full(len(parts), weight / len(parts), np.float32) for parts, weight in kinds])
