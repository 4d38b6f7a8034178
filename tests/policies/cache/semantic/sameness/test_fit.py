"""The heads over whole answers: what they learn of separable rows, and which parts matter."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from policies.cache.semantic.sameness.parts import AnswerParts
from policies.cache.semantic.sameness.training.batches import WordedPair
from policies.cache.semantic.sameness.training.fit import fit_layers, fit_matters, layers_log_odds, scale_of
from policies.cache.semantic.sameness.training.pairs import AnswerPair


def test_layers_learn_what_is_separable_and_the_same_of_one_seed() -> None:
    """The mean of several fits is one head; equal seeds make equal heads."""
    random = np.random.default_rng(1)
    rows = random.standard_normal((400, 6)).astype(np.float32)
    is_same = rows[:, 0] + rows[:, 3] > 0
    nothing = AnswerParts([], [])
    pairs = [
        WordedPair(nothing, nothing, row, AnswerPair("", "", bool(y), 1.0, ""))
        for row, y in zip(rows, is_same, strict=True)
    ]
    scale = scale_of(rows)
    one, again = (fit_layers(rows, pairs, scale, epochs=20, seed=3) for _ in range(2))

    told = layers_log_odds(one, rows, scale)
    assert ((told > 0) == is_same).mean() > 0.95
    np.testing.assert_array_equal(told, layers_log_odds(again, rows, scale))
    assert one.out.shape == (1, len(one.hidden)) == (1, len(one.hidden_bias))


def test_what_matters_is_told_by_weights_above_nothing() -> None:
    """Ten of few are found among hundreds that say the opposite, if they weigh as much."""
    random = np.random.default_rng(2)
    says, nothing = (
        random.standard_normal((count, 5)).astype(np.float32) + mean for count, mean in ((300, 1), (10, -1))
    )
    weights = np.concatenate((np.full(300, 0.5 / 300), np.full(10, -0.5 / 10))).astype(np.float32)
    weight, bias = fit_matters(np.concatenate((says, nothing)), weights)

    assert (says @ weight[0] + bias > 0).mean() > 0.9
    assert (nothing @ weight[0] + bias < 0).mean() > 0.8
