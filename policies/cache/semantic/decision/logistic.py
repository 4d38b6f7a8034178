"""Ridge logistic regression of labels that are in doubt themselves, by Newton's method: small, dense, warm-started.

A label is evidence: the log odds that a comparison of two answers gives for their saying the same where as many do as
do not. How likely an answer is right follows from the model and the evidence together, so that a comparison that cannot
tell leaves the model as it is, and one that is sure counts as a label does (Dempster, Laird and Rubin, 1977).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DIFFERENT = -1.0
"""Evidence up to which two answers rather say something different, whatever else is known of them."""

_CALIBRATED_FROM = 1.0
_SAME = np.array([0.0, 1.0])
_SAME_RIDGE = np.array([1.0, 4.0])

_LEAST_DOUBT = 1e-4
"""No comparison is surer than this."""

_MAX_STEP = 5.0
"""Length of the longest Newton step: the first ones from a flat start overshoot."""


def wrong_probability(scores: Floats) -> Floats:
    """1 / (1 + exp(score)) for log odds of being right; any finite score."""
    probability: Floats = 1.0 / (1.0 + np.exp(np.clip(scores, -30.0, 30.0)))
    return probability


def evidence_of(rightness: Floats) -> Floats:
    """The log odds of probabilities, 0..1, that are calibrated at even odds."""
    held = np.clip(rightness, _LEAST_DOUBT, 1.0 - _LEAST_DOUBT)
    evidence: Floats = np.log(held / (1.0 - held))
    return evidence


def calibrated(weights: Floats, inputs: Floats, evidence: Floats) -> Floats:
    """The same order of scores with a bias and a scale that suit the likelier half, where answers are served.

    A model of all labels is drawn by the many unlikely ones; at the top it is mostly too timid (Platt, 1999).
    """
    scores = inputs @ weights
    top = scores >= _CALIBRATED_FROM
    pairs = np.column_stack([np.ones(int(top.sum())), scores[top]])
    line = fit(pairs, evidence[top], prior=_SAME, ridge=_SAME_RIDGE, start=_SAME, steps=5)
    # A scale at or below 0 would turn the order over.
    scaled = weights * max(float(line[1]), 0.1)
    scaled[0] += line[0]
    return scaled


def fit(inputs: Floats, evidence: Floats, *, prior: Floats, ridge: Floats, start: Floats, steps: int) -> Floats:
    """The weights that make the labels likeliest, less ridge x squared distance from the prior.

    inputs: [labels, features + 1], the first column 1 for the bias; evidence: [labels], log odds of being right; prior,
    ridge, start and the result: [features + 1]. Ridge must be above 0. A few steps from the last fit's weights are
    enough.
    """
    weights = start.copy()
    for _ in range(steps):
        scores = inputs @ weights
        right = 1.0 - wrong_probability(scores)
        is_right = 1.0 - wrong_probability(scores + evidence)
        gradient = inputs.T @ (right - is_right) + ridge * (weights - prior)
        # Rows that the model is sure of still hold the matrix up.
        curvature = (inputs.T * np.maximum(right * (1.0 - right), 1e-6)) @ inputs
        curvature[np.diag_indices_from(curvature)] += ridge
        step = np.linalg.solve(curvature, gradient)
        weights -= step * min(1.0, _MAX_STEP / max(float(np.linalg.norm(step)), 1e-12))
    return weights
