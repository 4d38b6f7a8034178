"""The trained heads: from tokens and words of two answers to the log odds that they say the same. numpy alone.

`TokenHead` holds a sentence against another and `AnswerHead` judges the whole by it, where the tokens of the encoder
that they were trained with are at hand; `WordHead` where they are not. Their weights come with the package;
`python -m policies.cache.semantic.sameness.training` makes them anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.sameness.alignment import EncodedPart, Meeting, TokenizedAnswer, join, padded

_FOLDER = Path(__file__).parent / "weights"
_MAX_DEVIATION = 4.0
"""Standard deviations; what is farther from what was trained on is taken to be so far."""

Floats = NDArray[np.float32]


class Bin(msgspec.Struct, frozen=True):
    """Pairs told a probability of `low` to `high`: how many, its mean, and the share that does say the same."""

    low: float
    high: float
    pairs: int
    mean: float
    share_same: float


class HeadScores(msgspec.Struct, frozen=True):
    """On pairs never seen. From `same_from` on 1 % of those that differ are called the same, and `recognised` of those
    that are; up to `different_to` 0.3 % of those that are the same are called different, and `rejected` of the others.
    """

    bins: list[Bin]
    same_from: float
    recognised: float
    different_to: float
    rejected: float


class Card(msgspec.Struct, frozen=True):
    """What is known of the weights. `fingerprint`: of the encoder whose tokens the head reads. What `bend`s
    log odds so that they are calibrated: slope and intercept, of answers by their parts and by words alone.
    """

    fingerprint: str
    sha256: str
    seed: int
    trained_on: str
    bend: tuple[float, float]
    word_bend: tuple[float, float]
    scores: dict[str, HeadScores]


class HeadWeights(msgspec.Struct, frozen=True):
    """All arrays by name, and their card. Those of `encoder.` are added to the encoder's own weights where it reads
    answers (`TokenLayers`).
    """

    arrays: dict[str, Floats]
    card: Card


def load_weights(folder: Path = _FOLDER) -> HeadWeights:
    """Those that come with the package. They are read as numbers alone, never as objects."""
    with np.load(folder / "heads.npz", allow_pickle=False) as file:
        arrays = {name: file[name].astype(np.float32) for name in file.files}
    return HeadWeights(arrays, msgspec.json.decode((folder / "card.json").read_bytes(), type=Card))


class ReadPart(NamedTuple):
    """A part of an answer as the head has read it by itself. `joined` is what it has read; `tokens` [tokens, width];
    `stance`: what it takes a stand for, whatever the other says.
    """

    joined: TokenizedAnswer
    tokens: Floats
    stance: Floats


class TokenHead:
    """Decomposable attention (Parikh et al., EMNLP 2016, section 3) over given vectors of tokens, of two sentences."""

    def __init__(self, weights: HeadWeights) -> None:
        self._arrays = weights.arrays

    def read(self, part: EncodedPart) -> ReadPart:
        """What can be said of a part by itself."""
        joined = join([part])
        return ReadPart(joined, *self.read_tokens(joined.vectors))

    def read_tokens(self, vectors: Floats) -> tuple[Floats, Floats]:
        """`ReadPart.tokens` and its `stance`, of [tokens, dimension]."""
        seen = np.maximum(self._layer("sense", vectors), 0)
        stance = np.maximum(self._layer("stand", np.concatenate((seen.mean(axis=0), seen.max(axis=0)))), 0)
        return self._layer("project", vectors), stance

    def matters(self, vectors: Floats) -> Floats:
        """[parts], the probability that each says anything of the matter; from their own vectors [parts, dimension]."""
        odds = vectors @ self._arrays["matters.weight"][0] + self._arrays["matters.bias"]
        matters: Floats = 1.0 / (1.0 + np.exp(-odds))
        return matters

    def told(self, pairs: Sequence[tuple[ReadPart, ReadPart]], meeting: Meeting, words: Floats) -> Floats:
        """[pairs], log odds of saying the same as they were trained, in either order. `meeting` as `meet` of them,
        `words` [pairs, features] as `word_features`.
        """
        arrays = self._arrays
        left, right = (padded([pair[side].tokens for pair in pairs]) for side in (0, 1))
        stance, other_stance = (np.stack([pair[side].stance for pair in pairs]) for side in (0, 1))
        by_head, by_bonds = arrays["attend"][0], arrays["attend"][1:]
        scores = by_head * (left @ right.transpose(0, 2, 1)) / np.float32(math.sqrt(left.shape[2]))
        scores += meeting.bonds[..., :-1] @ by_bonds + meeting.bonds[..., -1]
        mean, most = self._pool(left, _softmax(scores) @ right, meeting.flags, meeting.mask)
        back = _softmax(scores.transpose(0, 2, 1)) @ left
        mean_back, most_back = self._pool(right, back, meeting.other_flags, meeting.other_mask)
        pooled = np.concatenate(
            (
                mean + mean_back,
                np.maximum(most, most_back),
                np.abs(stance - other_stance),
                stance * other_stance,
                standard(words, "part", arrays),
            ),
            axis=1,
        )
        return self._layer("tell", np.maximum(self._layer("join", pooled), 0))[:, 0]

    def _pool(self, own: Floats, partner: Floats, flags: Floats, mask: Floats) -> tuple[Floats, Floats]:
        met = np.concatenate((np.abs(own - partner), own * partner, own, flags), axis=2)
        seen = np.maximum(self._layer("refine", np.maximum(self._layer("compare", met), 0)), 0) * mask[..., None]
        return seen.sum(axis=1) / mask.sum(axis=1, keepdims=True), seen.max(axis=1)

    def _layer(self, name: str, x: Floats) -> Floats:
        y: Floats = x @ self._arrays[f"{name}.weight"].T + self._arrays[f"{name}.bias"]
        return y


class AnswerHead:
    """Two layers over what is known of two whole answers: how their parts match, and their words."""

    def __init__(self, weights: HeadWeights) -> None:
        self._arrays = weights.arrays
        self._bend = weights.card.bend

    def log_odds(self, match: Floats, words: Floats) -> float:
        """Of saying the same, calibrated. `match` as `match_features`, `words` as `word_features`."""
        known = np.concatenate((match, words))
        return self._bend[0] * _layers("answer", known, self._arrays) + self._bend[1]


class WordHead:
    """What can be said from words alone: two layers over their features."""

    def __init__(self, weights: HeadWeights) -> None:
        self._arrays = weights.arrays
        self._bend = weights.card.word_bend

    def log_odds(self, words: Floats) -> float:
        """Of saying the same, calibrated."""
        return self._bend[0] * _layers("words", words, self._arrays) + self._bend[1]


def standard(known: Floats, name: str, arrays: dict[str, Floats]) -> Floats:
    """In standard deviations from what was trained on."""
    away = (known - arrays[f"{name}.mean"]) / arrays[f"{name}.deviation"]
    scaled: Floats = np.clip(away, -_MAX_DEVIATION, _MAX_DEVIATION)
    return scaled


def _layers(name: str, known: Floats, arrays: dict[str, Floats]) -> float:
    hidden = arrays[f"{name}.0.weight"] @ standard(known, name, arrays) + arrays[f"{name}.0.bias"]
    return float((arrays[f"{name}.1.weight"] @ np.maximum(hidden, 0) + arrays[f"{name}.1.bias"])[0])


def _softmax(scores: Floats) -> Floats:
    raised: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return shares
