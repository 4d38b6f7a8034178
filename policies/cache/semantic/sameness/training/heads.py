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
from policies.cache.semantic.sameness.training.answers import features_of
from policies.cache.semantic.sameness.training.batches import WordedPair, encode_parts, worded
from policies.cache.semantic.sameness.training.examples import AnswerPairs
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
_PAIRS_OF_PARTS = 10_000
"""Of sentences, whose parts all say something of the matter."""


class AnswerHeads(NamedTuple):
    """`arrays` as in the weights; by head what bends its log odds, the least that a pair that says the same has, and
    how well it does on the test set.
    """

    arrays: dict[str, NDArray[np.float32]]
    bends: dict[str, tuple[float, float]]
    floors: dict[str, float]
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
    says_nothing = [part for line in Generator(Random(0), frozenset()).says_nothing() for part in texts_of(line)]
    sentences = [pair for family in sets.sentences for pair in family][:_PAIRS_OF_PARTS]
    encoded = encode_parts([sentences, *sets[1:]], says_nothing, encoder.embed_parts, note)
    matters = fit_matters(*_parts(sentences, says_nothing, encoded))

    def rows_of(pairs: Sequence[WordedPair]) -> NDArray[np.float32]:
        return features_of(
            pairs,
            encoded,
            vocabulary,
            lambda pairs: token_log_odds(network, pairs, part_scale),
            lambda vectors: 1 / (1 + np.exp(-(vectors.astype(np.float32) @ matters[0][0] + matters[1]))),
        )

    rows = [rows_of(one) for one in answers]
    rows_of_other_matters = rows_of(_of_other_matters(answers[1]))
    heads = AnswerHeads({"matters.weight": matters[0], "matters.bias": matters[1]}, {}, {}, {})
    is_same = [np.array([pair.example.is_same for pair in one]) for one in answers]
    for name, seen in (("answer", rows), ("words", [words_of(one) for one in answers])):
        scale = scale_of(seen[0])
        layers = fit_layers(seen[0], answers[0], scale, epochs=_LAYER_EPOCHS, seed=seed)
        heads.arrays.update({f"{name}.mean": scale.mean, f"{name}.deviation": scale.deviation})
        for number, at in enumerate(("0", "3")):
            for kind in ("weight", "bias"):
                heads.arrays[f"{name}.{number}.{kind}"] = layers.state_dict()[f"{at}.{kind}"].numpy()
        raw = [layers_log_odds(layers, seen[number], scale) for number in (1, 2)]
        odds, same = raw[0], is_same[1]
        if name == "answer":
            # A cache compares as many that are of another matter as differ in one fact.
            others = layers_log_odds(layers, rows_of_other_matters, scale)
            odds, same = np.concatenate((odds, others)), np.concatenate((same, np.zeros(len(others), bool)))
        slope, intercept = heads.bends[name] = bend_of(odds, same)
        bent = [slope * each + intercept for each in raw]
        heads.floors[name] = min(float(each[same].min()) for each, same in zip(bent, is_same[1:], strict=True))
        heads.scores[name] = scores_of(bent[1], is_same[2])
    return heads


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
    pairs: Sequence[AnswerPair], says_nothing: list[str], encoded: dict[str, EncodedPart]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """[parts, dimension] and [parts]: each part's vector, and whether it says anything of the matter."""
    says = {part for pair in pairs for side in (pair.left, pair.right) for part in texts_of(side)}
    parts = [(part, True) for part in sorted(says - set(says_nothing))] + [(part, False) for part in says_nothing]
    vectors = np.stack([encoded[part].vectors[-1] for part, _ in parts]).astype(np.float32)
    return vectors, np.array([matters for _, matters in parts])
