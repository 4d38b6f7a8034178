"""Kernel ridge regression of (strong right - weak right) on a prompt's meaning, form and words.

The kernel is a Gaussian of the encoder's vector beside the features of the form, plus the cosine of the words' weights
(term frequency times inverse document frequency). Solved in its dual form, so the answer of a prompt is a sum over the
prompts that it was learned from; of the words only one weight each is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.speculation.router.prompt_features import NUM_FEATURES, NUM_WORDS, features_of, words_of

Floats = NDArray[np.float32]

MAX_ROWS = 8000
"""Of more some are drawn: solving takes their number cubed, and each prompt is compared with all of them."""
_WIDTH = 1.0
_FORM_SHARE = 0.5 / NUM_FEATURES**0.5
_WORDS_SHARE = 1.0
_RIDGE = 15.0
_FARTHEST = 4.0
"""In standard deviations: no feature of a strange prompt counts for more."""


class LearnedRouter(msgspec.Struct, frozen=True):
    """What was learned, as arrays in bytes. `num_rows` prompts, vectors of `dimension` numbers.

    points: [rows, dimension + 26] float16; pulls: [rows] float32; center, scale: [26] float32; word_weights: [8192]
    float32, of inverse document frequency and what the words are worth.
    """

    num_rows: int
    dimension: int
    mean: float
    points: bytes
    pulls: bytes
    center: bytes
    scale: bytes
    rarity: bytes
    word_weights: bytes


def learn(prompts: Sequence[str], vectors: Floats, gains: Floats, random: np.random.Generator) -> LearnedRouter:
    """vectors: [prompts, dimension] of length 1; gains: [prompts], strong right - weak right."""
    if len(prompts) > MAX_ROWS:
        drawn = np.sort(random.choice(len(prompts), MAX_ROWS, replace=False))
        prompts, vectors, gains = [prompts[row] for row in drawn], vectors[drawn], gains[drawn]
    forms = np.stack([features_of(prompt) for prompt in prompts])
    center, scale = forms.mean(axis=0), forms.std(axis=0) + np.float32(1e-6)
    words = np.zeros((len(prompts), NUM_WORDS), np.float32)
    for row, prompt in enumerate(prompts):
        places, counts = words_of(prompt)
        words[row, places] = counts
    rarity = np.maximum(np.log(len(prompts) / (1 + (words > 0).sum(axis=0))), 0).astype(np.float32)
    words *= rarity
    words /= np.linalg.norm(words, axis=1, keepdims=True) + np.float32(1e-9)
    points = _points(vectors, forms, center, scale).astype(np.float16)
    wide = points.astype(np.float32)
    kernel = _near(wide, wide, _squares(wide))
    kernel += _WORDS_SHARE * (words @ words.T)
    kernel[np.diag_indices_from(kernel)] += _RIDGE
    mean = float(gains.mean())
    pulls = np.linalg.solve(kernel, (gains - mean).astype(np.float32)).astype(np.float32)
    return LearnedRouter(
        num_rows=len(prompts),
        dimension=vectors.shape[1],
        mean=mean,
        points=points.tobytes(),
        pulls=pulls.tobytes(),
        center=center.tobytes(),
        scale=scale.tobytes(),
        rarity=rarity.tobytes(),
        word_weights=(_WORDS_SHARE * (words.T @ pulls)).astype(np.float32).tobytes(),
    )


class PromptScorer:
    """What a learned router says of prompts."""

    def __init__(self, learned: LearnedRouter) -> None:
        """Raises: ValueError where its arrays do not fit together."""
        width = learned.dimension + NUM_FEATURES
        self.dimension = learned.dimension
        self._mean = learned.mean
        self._points = np.frombuffer(learned.points, np.float16).astype(np.float32).reshape(learned.num_rows, width)
        self._lengths = _squares(self._points)
        self._pulls = np.frombuffer(learned.pulls, np.float32).reshape(learned.num_rows)
        self._center = np.frombuffer(learned.center, np.float32).reshape(NUM_FEATURES)
        self._scale = np.frombuffer(learned.scale, np.float32).reshape(NUM_FEATURES)
        self._rarity = np.frombuffer(learned.rarity, np.float32).reshape(NUM_WORDS)
        self._word_weights = np.frombuffer(learned.word_weights, np.float32).reshape(NUM_WORDS)

    def gain(self, prompt: str, vector: Floats) -> float:
        """About how much likelier the strong model is right: -1..1. `vector` is the encoder's, of length 1."""
        return float(self.gains([prompt], vector[np.newaxis])[0])

    def gains(self, prompts: Sequence[str], vectors: Floats) -> Floats:
        """The same of several: [prompts]."""
        forms = np.stack([features_of(prompt) for prompt in prompts])
        found: Floats = (
            _near(_points(vectors, forms, self._center, self._scale), self._points, self._lengths) @ self._pulls
        )
        found += self._mean
        for row, prompt in enumerate(prompts):
            places, counts = words_of(prompt)
            weights = counts * self._rarity[places]
            length = float(np.linalg.norm(weights)) + 1e-9
            found[row] += float(weights @ self._word_weights[places]) / length
        return found


def _points(vectors: Floats, forms: Floats, center: Floats, scale: Floats) -> Floats:
    standard = np.clip((forms - center) / scale, -_FARTHEST, _FARTHEST)
    return np.hstack([vectors, standard * np.float32(_FORM_SHARE)]).astype(np.float32)


def _squares(rows: Floats) -> Floats:
    """The squared length of each."""
    found: Floats = np.einsum("ij,ij->i", rows, rows)
    return found


def _near(left: Floats, right: Floats, right_squares: Floats) -> Floats:
    """exp(-squared distance) of each pair: [left, right]."""
    near = left @ right.T
    near *= 2
    near -= _squares(left)[:, np.newaxis]
    near -= right_squares
    near *= _WIDTH
    found: Floats = np.exp(near, out=near)
    return found
