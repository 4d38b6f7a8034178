"""A cache that learns a sigmoid for every entry: written from Schroeder et al., 2025, "vCache", arXiv 2502.03771."""

from __future__ import annotations

from random import Random
from statistics import NormalDist

import numpy as np

from policies.cache.semantic.benchmark.contenders import Entries
from policies.cache.semantic.benchmark.streams import QuestionStream
from policies.cache.semantic.benchmark.upstream import Upstream
from policies.cache.semantic.decision.logistic import evidence_of, fit

_MIN_OBSERVATIONS = 4
_UNSURE = np.linspace(0.01, 0.5, 25)
"""Chances that a threshold estimated from the observations is too low, over which the paper minimises."""
_QUANTILES = np.array([NormalDist().inv_cdf(1.0 - unsure) for unsure in _UNSURE])
_PRIOR = np.array([-15.0, 20.0])
_RIDGE = np.array([1e-3, 1e-3])
"""So little that it only keeps separable observations finite."""


class VCacheLike:
    """Explores the upstream with the probability that keeps `delta`, the wrong answers allowed of look-ups.

    No entry serves before four observations of its own, and an answer that is known is not stored a second time.
    """

    def __init__(self, stream: QuestionStream, upstream: Upstream, random: Random, delta: float) -> None:
        self._upstream = upstream
        self._entries = Entries(stream)
        self._random = random
        self._delta = delta
        self._observed: dict[int, list[tuple[float, bool]]] = {}
        self._fitted: dict[int, tuple[float, float, float]] = {}

    def ask(self, query: int) -> int | None:
        """By the nearest entry's sigmoid; nothing but a stored answer that is found different makes an entry."""
        nearest = self._entries.nearest(query, 1)
        if not nearest:
            self._store(self._upstream.answer(query))
            return None
        entry, cosine = nearest[0]
        if self._random.random() > self._explore(entry, cosine):
            return entry
        answer = self._upstream.answer(query)
        is_same = self._upstream.is_same(entry, answer)
        self._observed[entry].append((cosine, is_same))
        self._fitted.pop(entry, None)
        if not is_same:
            self._store(answer)
        return None

    def hold_only(self, query: int) -> None:
        """That question alone, with no observation: entries share nothing that is learned."""
        self._entries.clear()
        self._store(query)

    def _store(self, query: int) -> None:
        self._entries.add(query)
        self._observed.setdefault(query, [])

    def _explore(self, entry: int, cosine: float) -> float:
        """The probability of asking the upstream: the least over the confidences in the entry's threshold."""
        if len(self._observed[entry]) < _MIN_OBSERVATIONS:
            return 1.0
        if entry not in self._fitted:
            self._fitted[entry] = self._fit(entry)
        slope, threshold, deviation = self._fitted[entry]
        cautious = threshold + _QUANTILES * deviation
        right = (1.0 - _UNSURE) / (1.0 + np.exp(-np.clip(slope * (cosine - cautious), -30, 30)))
        explore = 1.0 - self._delta / np.maximum(1.0 - right, 1e-9)
        return float(np.clip(explore, 0.0, 1.0).min())

    def _fit(self, entry: int) -> tuple[float, float, float]:
        """Slope and threshold of the sigmoid, and the threshold's standard deviation by the delta method."""
        observed = np.array(self._observed[entry])
        inputs = np.column_stack([np.ones(len(observed)), observed[:, 0]])
        weights = fit(inputs, evidence_of(observed[:, 1]), prior=_PRIOR, ridge=_RIDGE, start=_PRIOR, steps=20)
        slope = max(float(weights[1]), 1e-3)
        threshold = -float(weights[0]) / slope
        right = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        information = (inputs.T * np.maximum(right * (1.0 - right), 1e-6)) @ inputs + np.diag(_RIDGE)
        gradient = np.array([-1.0 / slope, -threshold / slope])
        variance = float(gradient @ np.linalg.solve(information, gradient))
        return slope, threshold, max(variance, 0.0) ** 0.5
