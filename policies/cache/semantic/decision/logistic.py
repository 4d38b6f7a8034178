"""Ridge logistic regression by Newton's method, drawn towards a prior: small, dense, warm-started."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CALIBRATED_FROM = 1.0
_SAME = np.array([0.0, 1.0])
_SAME_RIDGE = np.array([1.0, 4.0])

_MAX_STEP = 5.0
"""Length of the longest Newton step: the first ones from a flat start overshoot."""


def wrong_probability(scores: Floats) -> Floats:
    """1 / (1 + exp(score)) for log odds of being right; any finite score."""
    probability: Floats = 1.0 / (1.0 + np.exp(np.clip(scores, -30.0, 30.0)))
    return probability


def calibrated(weights: Floats, inputs: Floats, is_right: Floats) -> Floats:
    """The same order of scores with a bias and a scale that suit the likelier half, where answers are served.

    A model of all labels is drawn by the many unlikely ones; at the top it is mostly too timid (Platt, 1999).
    """
    scores = inputs @ weights
    top = scores >= _CALIBRATED_FROM
    pairs = np.column_stack([np.ones(int(top.sum())), scores[top]])
    line = fit(pairs, is_right[top], prior=_SAME, ridge=_SAME_RIDGE, start=_SAME, steps=5)
    # A scale at or below 0 would turn the order over.
    scaled = weights * max(float(line[1]), 0.1)
    scaled[0] += line[0]
    return scaled


def fit(inputs: Floats, is_right: Floats, *, prior: Floats, ridge: Floats, start: Floats, steps: int) -> Floats:
    """The weights that make the labels likeliest, less ridge x squared distance from the prior.

    inputs: [labels, features + 1], the first column 1 for the bias; is_right: [labels] of 0 or 1; prior, ridge, start
    and the result: [features + 1]. Ridge must be above 0. A few steps from the last fit's weights are enough.
    """
    weights = start.copy()
    for _ in range(steps):
        right = 1.0 - wrong_probability(inputs @ weights)
        gradient = inputs.T @ (right - is_right) + ridge * (weights - prior)
        # Rows that the model is sure of still hold the matrix up.
        curvature = (inputs.T * np.maximum(right * (1.0 - right), 1e-6)) @ inputs
        curvature[np.diag_indices_from(curvature)] += ridge
        step = np.linalg.solve(curvature, gradient)
        weights -= step * min(1.0, _MAX_STEP / max(float(np.linalg.norm(step)), 1e-12))
    return weights
