"""How good a learned router is on prompts that it has not seen: the share of the gap that it recovers for its calls.

The gap is between the small model's share of right answers and the large one's. APGR is the mean, over all shares of
calls to the large model, of the share of the gap recovered; who sends calls by chance has 0.5 (Ong et al., "RouteLLM",
2024; written from the paper's definition).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.speculation.router.isotonic import fit_rising, step_values
from policies.speculation.router.labelled import LabelledPrompt
from policies.speculation.router.learned_router import PromptScorer, learn

Floats = NDArray[np.float64]

NUM_FOLDS = 5
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Calls to the large model at which the recovered share of the gap is shown."""
_NUM_RESAMPLES = 1000
_NUM_GRID = 500


class Interval(msgspec.Struct, frozen=True):
    """A figure, and between which limits it is with 95 % confidence."""

    value: float
    low: float
    high: float


class RouterFigures(msgspec.Struct, frozen=True):
    """Of one set. `recovered` is at each of SHARES; `calibration_error` is in points of right answers, 0..1."""

    set: str
    num_prompts: int
    weak: float
    strong: float
    apgr: Interval
    recovered: tuple[Interval, ...]
    calibration_error: float


def out_of_fold(
    rows: Sequence[LabelledPrompt], vectors: NDArray[np.float32], random: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Each row's score by a router that was learned without its fold, and its fold."""
    folds = random.permutation(len(rows)) % NUM_FOLDS
    gains = np.array([row.strong - row.weak for row in rows], np.float32)
    scores = np.zeros(len(rows))
    for fold in range(NUM_FOLDS):
        seen, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        learned = learn([rows[row].prompt for row in seen], vectors[seen], gains[seen], random)
        scores[held] = PromptScorer(learned).gains([rows[row].prompt for row in held], vectors[held])
    return scores, folds


def evaluate(
    name: str,
    rows: Sequence[LabelledPrompt],
    vectors: NDArray[np.float32],
    *,
    repeats: int,
    note: Callable[[int, int], None],
) -> RouterFigures:
    """Out-of-fold figures, means over `repeats` divisions into folds; intervals by resampling prompts (bootstrap).

    Raises: ValueError where the strong model is not better, so that there is no gap.
    """
    weak = np.array([row.weak for row in rows])
    strong = np.array([row.strong for row in rows])
    if strong.mean() <= weak.mean():
        raise ValueError(f'in set "{name}" the strong model is not better than the weak one: there is nothing to route')
    curves, errors = [], []
    for repeat in range(repeats):
        random = np.random.default_rng(repeat)
        scores, folds = out_of_fold(rows, vectors, random)
        curves.append(_resampled_curves(scores, strong - weak))
        errors.append(_calibration_error(scores, strong - weak, folds))
        note(repeat + 1, repeats)
    curve = np.mean(curves, axis=0)
    at = [round(share * _NUM_GRID) for share in SHARES]
    return RouterFigures(
        set=name,
        num_prompts=len(rows),
        weak=float(weak.mean()),
        strong=float(strong.mean()),
        apgr=_estimate((curve[:, 1:] + curve[:, :-1]).mean(axis=1) / 2),
        recovered=tuple(_estimate(curve[:, place]) for place in at),
        calibration_error=float(np.mean(errors)),
    )


def _resampled_curves(scores: Floats, gains: Floats) -> Floats:
    """[1 + resamples, grid]: the share of the gap recovered by sending so much of the prompts, the worst first.

    The resamples are the same each time, so that means over several divisions into folds have intervals too.
    """
    random = np.random.default_rng(0)
    order = np.argsort(-scores, kind="stable")
    grid = np.linspace(0, 1, _NUM_GRID + 1)
    weights = np.ones(len(order))
    curves = np.empty((1 + _NUM_RESAMPLES, len(grid)))
    for curve in curves:
        sent = np.concatenate([[0.0], np.cumsum(weights)]) / len(order)
        won = np.concatenate([[0.0], np.cumsum(weights * gains[order])])
        curve[:] = np.interp(grid, sent, won / won[-1] if won[-1] else won)
        weights = np.bincount(random.integers(len(order), size=len(order)), minlength=len(order))[order].astype(float)
    return curves


def _estimate(values: Floats) -> Interval:
    """The first is of the rows themselves, the others of resampled ones."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Interval(float(values[0]), float(low), float(high))


def _calibration_error(scores: Floats, gains: Floats, folds: NDArray[np.int64]) -> float:
    """How far what a calibration says is from what came, for rows that it was not made of; over ten equal parts."""
    said = np.zeros(len(scores))
    for fold in range(NUM_FOLDS):
        held = folds == fold
        said[held] = step_values(*fit_rising(scores[~held], gains[~held]), scores[held])
    parts = np.array_split(np.argsort(said, kind="stable"), 10)
    return float(sum(abs(said[part].mean() - gains[part].mean()) * len(part) for part in parts) / len(scores))
