"""How well calibrated log odds do: probabilities against truth, and what thresholds call the same and different."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.sameness.head import Bin, HeadScores

_EDGES = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)
_MOST_WRONGLY_SAME = 0.01
_MOST_WRONGLY_DIFFERENT = 0.003


def scores_of(log_odds: NDArray[np.float64], is_same: NDArray[np.bool_]) -> HeadScores:
    """Bins weigh both classes alike: what is calibrated is calibrated for as many of one as of the other."""
    probabilities = 1 / (1 + np.exp(-log_odds))
    weights = np.where(is_same, 0.5 / is_same.mean(), 0.5 / (1 - is_same.mean()))
    bins = []
    for low, high in pairwise(_EDGES):
        within = (probabilities >= low) & ((probabilities < high) | (high == 1.0))
        if within.any():
            mean, share = (float(np.average(x[within], weights=weights[within])) for x in (probabilities, is_same))
            bins.append(Bin(low, high, int(within.sum()), round(mean, 3), round(share, 3)))
    others, same = np.sort(probabilities[~is_same]), np.sort(probabilities[is_same])
    same_from = others[-1 - int(_MOST_WRONGLY_SAME * len(others))]
    different_to = same[int(_MOST_WRONGLY_DIFFERENT * len(same))]
    return HeadScores(
        bins,
        round(float(same_from), 4),
        round(float((same > same_from).mean()), 3),
        round(float(different_to), 4),
        round(float((others < different_to).mean()), 3),
    )
