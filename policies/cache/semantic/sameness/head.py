"""The trained head: from tokens and words of two answers to the log odds that they say the same. numpy alone.

Two of them: `TokenHead` where the tokens of the encoder that it was trained with are at hand, `WordHead` where they are
not. Their weights come with the package; `python -m policies.cache.semantic.sameness.training` makes them anew.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.sameness.alignment import TokenizedAnswer

_FOLDER = Path(__file__).parent / "weights"
_FAR = 1e9
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
    log odds so that they are calibrated: of both heads together the weights of each and an intercept, of the word head
    alone its slope and intercept.
    """

    fingerprint: str
    sha256: str
    seed: int
    trained_on: str
    bend: tuple[float, float, float]
    word_bend: tuple[float, float]
    scores: dict[str, HeadScores]


class HeadWeights(msgspec.Struct, frozen=True):
    """Both heads' arrays by name, and their card."""

    arrays: dict[str, Floats]
    card: Card


def load_weights(folder: Path = _FOLDER) -> HeadWeights:
    """Those that come with the package. They are read as numbers alone, never as objects."""
    with np.load(folder / "heads.npz", allow_pickle=False) as file:
        arrays = {name: file[name].astype(np.float32) for name in file.files}
    return HeadWeights(arrays, msgspec.json.decode((folder / "card.json").read_bytes(), type=Card))


class TokenHead:
    """Decomposable attention (Parikh et al., EMNLP 2016, section 3) over given vectors of tokens."""

    def __init__(self, weights: HeadWeights) -> None:
        self._arrays = weights.arrays
        self._words = WordHead(weights)
        self._bend = weights.card.bend

    def log_odds(
        self, one: TokenizedAnswer, other: TokenizedAnswer, flags: Floats, other_flags: Floats, words: Floats
    ) -> float:
        """Of saying the same by both heads, calibrated, in either order. `flags` as `flags_of`, `words` as
        `word_features`.
        """
        by_tokens, by_words, intercept = self._bend
        told = self._told(one, other, flags, other_flags, words)
        return by_tokens * told + by_words * self._words.told(words) + intercept

    def _told(
        self, one: TokenizedAnswer, other: TokenizedAnswer, flags: Floats, other_flags: Floats, words: Floats
    ) -> float:
        arrays = self._arrays
        left, right = self._layer("project", one.vectors), self._layer("project", other.vectors)
        cosines = one.vectors @ other.vectors.T
        ones, others = one.ids < 0, other.ids < 0
        parts = cosines[np.ix_(ones, others)][one.part][:, other.part]
        is_same = (one.ids[:, None] == other.ids[None, :]) & ~ones[:, None]
        by_head, by_cosine, by_part, by_word = arrays["attend"]
        scores = by_head * (left @ right.T) / np.float32(math.sqrt(left.shape[1]))
        scores += by_cosine * cosines + by_part * parts + by_word * is_same
        scores[ones[:, None] != others[None, :]] = -_FAR
        mean, most = self._pool(left, _softmax(scores) @ right, flags)
        mean_back, most_back = self._pool(right, _softmax(scores.T) @ left, other_flags)
        pooled = np.concatenate((mean + mean_back, np.maximum(most, most_back), standard(words, arrays)))
        return float(self._layer("tell", np.maximum(self._layer("join", pooled), 0))[0])

    def _pool(self, own: Floats, partner: Floats, flags: Floats) -> tuple[Floats, Floats]:
        met = np.concatenate((np.abs(own - partner), own * partner, own, flags), axis=1)
        seen = np.maximum(self._layer("refine", np.maximum(self._layer("compare", met), 0)), 0)
        return seen.mean(axis=0), seen.max(axis=0)

    def _layer(self, name: str, x: Floats) -> Floats:
        y: Floats = x @ self._arrays[f"{name}.weight"].T + self._arrays[f"{name}.bias"]
        return y


class WordHead:
    """What can be said from words alone: two layers over their features."""

    def __init__(self, weights: HeadWeights) -> None:
        self._arrays = weights.arrays
        self._bend = weights.card.word_bend

    def log_odds(self, words: Floats) -> float:
        """Of saying the same, calibrated."""
        return self._bend[0] * self.told(words) + self._bend[1]

    def told(self, words: Floats) -> float:
        """Log odds as they were trained."""
        arrays = self._arrays
        hidden = np.maximum(arrays["words.0.weight"] @ standard(words, arrays) + arrays["words.0.bias"], 0)
        return float((arrays["words.1.weight"] @ hidden + arrays["words.1.bias"])[0])


def standard(words: Floats, arrays: dict[str, Floats]) -> Floats:
    """Features of words in standard deviations from what was trained on."""
    scaled: Floats = np.clip(
        (words - arrays["words.mean"]) / arrays["words.deviation"], -_MAX_DEVIATION, _MAX_DEVIATION
    )
    return scaled


def _softmax(scores: Floats) -> Floats:
    raised: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=1, keepdims=True)
    return shares
