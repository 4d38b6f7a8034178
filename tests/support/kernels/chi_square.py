"""Whether counts fit a distribution."""

from __future__ import annotations

from math import cbrt, sqrt

import torch
from torch import Tensor

P_001 = 3.0902
"""The standard normal quantile above which one draw in a thousand lies."""


def misfit(counts: Tensor, probs: Tensor) -> float:
    """Pearson's chi-square of `counts` against `probs`, both flat, as a standard normal deviate.

    Cells that expect fewer than five are taken together. Counts where `probs` is zero are an AssertionError. The
    deviate is Wilson and Hilferty's, good to a few percent from three degrees of freedom on.
    """
    counts, probs = counts.double().flatten(), probs.double().flatten() / probs.double().sum()
    assert not counts[probs == 0].any(), "tokens were drawn that have no probability"
    expected = probs * counts.sum()
    is_large = expected >= 5
    expected = torch.cat((expected[is_large], expected[~is_large].sum().view(1)))
    counts = torch.cat((counts[is_large], counts[~is_large].sum().view(1)))
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    if freedom < 1:
        return 0.0
    spread = 2 / (9 * freedom)
    return (cbrt(statistic / freedom) - (1 - spread)) / sqrt(spread)
