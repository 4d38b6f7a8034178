"""The small model: against known weights, another implementation's conditions, and bad starts."""

from __future__ import annotations

import numpy as np
import pytest

from policies.cache.semantic.decision.logistic import Floats, calibrated, evidence_of, fit, wrong_probability


def made_labels(weights: list[float], num: int) -> tuple[Floats, Floats]:
    """Inputs with a bias column, and labels drawn from that model."""
    generator = np.random.default_rng(3)
    inputs = np.column_stack([np.ones(num), generator.normal(size=(num, len(weights) - 1))])
    is_right = (generator.random(num) >= wrong_probability(inputs @ np.array(weights))).astype(float)
    return inputs, is_right


def test_fit_finds_the_weights_that_made_the_labels() -> None:
    """Within the noise of twenty thousand labels."""
    inputs, is_right = made_labels([0.5, 2.0, -1.0], 20_000)
    found = fit(inputs, evidence_of(is_right), prior=np.zeros(3), ridge=np.full(3, 0.1), start=np.zeros(3), steps=20)

    assert found == pytest.approx([0.5, 2.0, -1.0], abs=0.1)


@pytest.mark.parametrize("start", [0.0, 5.0, -20.0])
def test_fit_ends_where_the_gradient_is_nothing(start: float) -> None:
    """The minimum does not depend on the start."""
    inputs, is_right = made_labels([0.2, 1.0], 300)
    prior, ridge = np.array([0.0, 3.0]), np.array([0.001, 4.0])
    found = fit(inputs, evidence_of(is_right), prior=prior, ridge=ridge, start=np.full(2, start), steps=60)

    scores = inputs @ found
    told = wrong_probability(scores) - wrong_probability(scores + evidence_of(is_right))
    gradient = -inputs.T @ told + ridge * (found - prior)
    assert np.abs(gradient).max() < 1e-6


def test_fit_of_labels_that_are_all_right_stays_finite() -> None:
    """Separable labels have no finite likeliest weights; the ridge has."""
    inputs, _ = made_labels([0.0, 1.0], 100)
    found = fit(
        inputs, evidence_of(np.ones(100)), prior=np.zeros(2), ridge=np.array([1e-3, 1.0]), start=np.zeros(2), steps=8
    )

    assert np.isfinite(found).all()


def test_fit_without_labels_is_the_prior() -> None:
    """Nothing to learn from."""
    prior = np.array([1.0, -2.0])
    found = fit(np.empty((0, 2)), np.empty(0), prior=prior, ridge=np.ones(2), start=np.zeros(2), steps=10)

    assert found == pytest.approx(prior)


def test_calibrated_expects_as_many_wrong_ones_as_there_are() -> None:
    """A model that is too timid at the top is put right, and the order of scores stays."""
    inputs, is_right = made_labels([2.0, 2.0], 20_000)
    timid = np.array([1.0, 1.0])
    better = calibrated(timid, inputs, evidence_of(is_right))

    top = inputs @ timid >= 1.0
    num_wrong = (1.0 - is_right[top]).sum()
    assert wrong_probability(inputs[top] @ better).sum() == pytest.approx(num_wrong, rel=0.1)
    order = np.argsort(inputs @ timid)
    assert (np.diff((inputs @ better)[order]) >= -1e-9).all()


def test_calibrated_on_labels_that_contradict_the_order_does_not_turn_it_over() -> None:
    """The higher the score the wronger: the scale becomes small, not negative."""
    inputs = np.column_stack([np.ones(400), np.linspace(1.0, 6.0, 400)])
    found = calibrated(np.array([0.0, 1.0]), inputs, evidence_of(np.linspace(1.0, 0.0, 400).round()))

    assert found[1] > 0.0


def test_fit_of_doubtful_labels_finds_the_weights_that_made_the_truth() -> None:
    """Nine in ten comparisons are right and say so; taken for sure they would flatten the model."""
    inputs, is_right = made_labels([0.5, 2.0], 20_000)
    is_told = np.where(np.random.default_rng(4).random(20_000) < 0.9, is_right, 1.0 - is_right)
    doubtful = fit(
        inputs,
        evidence_of(np.where(is_told > 0.5, 0.9, 0.1)),
        prior=np.zeros(2),
        ridge=np.full(2, 0.1),
        start=np.zeros(2),
        steps=60,
    )

    assert doubtful == pytest.approx([0.5, 2.0], abs=0.15)


def test_fit_of_labels_that_cannot_tell_is_the_prior() -> None:
    """However many they are."""
    inputs, _ = made_labels([0.5, 2.0], 200)
    prior = np.array([1.0, -2.0])
    found = fit(inputs, evidence_of(np.full(200, 0.5)), prior=prior, ridge=np.ones(2), start=np.zeros(2), steps=500)

    assert found == pytest.approx(prior, abs=0.1)
