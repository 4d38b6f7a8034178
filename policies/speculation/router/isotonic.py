"""Isotonic regression: the rising steps that are nearest to values in the order of their scores.

Pool adjacent violators (Ayer et al., 1955; written from the definition).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fit_rising(scores: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Scores at which steps begin, ascending, and the mean value of each step, ascending too.

    scores, values: [rows], at least one. Rows of one score are in one step.
    """
    starts, first, counts = np.unique(scores, return_index=False, return_inverse=True, return_counts=True)
    sums = np.bincount(first, weights=values)
    begins: list[float] = []
    totals: list[float] = []
    sizes: list[float] = []
    for start, total, size in zip(starts, sums, counts, strict=True):
        begins.append(float(start))
        totals.append(float(total))
        sizes.append(float(size))
        while len(sizes) > 1 and totals[-2] * sizes[-1] >= totals[-1] * sizes[-2]:
            total, size = totals.pop(), sizes.pop()
            begins.pop()
            totals[-1] += total
            sizes[-1] += size
    return np.array(begins), np.array(totals) / np.array(sizes)


def step_values(begins: Floats, values: Floats, scores: Floats) -> Floats:
    """The values of the steps in which scores are; of those below the first one, the first."""
    found: Floats = values[np.maximum(np.searchsorted(begins, scores, side="right") - 1, 0)]
    return found
