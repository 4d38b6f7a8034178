"""Filters keep what they should, and draws follow what they keep."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.choice.penalties import Penalties, penalised_reference
from kernels.choice.random import TARGET_STREAM
from kernels.choice.sample import (
    SampleRows,
    draw_reference,
    probabilities_reference,
    sample_reference,
    sample_with_logprobs_reference,
)
from tests.support.kernels.chi_square import P_001, misfit

VOCAB = 32
RUNS = 20_000


def make_rows(count: int, **filters: float) -> SampleRows:
    """That many rows with seed 3 at positions 0, 1, ..; `filters` by name, the same for all rows."""
    top_k = filters.pop("top_k", None)
    temperature = filters.pop("temperature", 1.0)
    floats = {name: torch.full((count,), value) for name, value in filters.items()}
    return SampleRows(
        seeds=torch.full((count,), 3),
        positions=torch.arange(count),
        temperature=torch.full((count,), temperature or 1.0),
        top_k=None if top_k is None else torch.full((count,), int(top_k)),
        is_greedy=None if temperature else torch.ones(count, dtype=torch.bool),
        **floats,
    )


def filtered_by_sorting(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """One row's distribution, with float64 and a loop over the sorted tokens."""
    if temperature == 0:
        return [float(index == logits.index(max(logits))) for index in range(len(logits))]
    scaled = [value / temperature for value in logits]
    weights = [math.exp(value - max(scaled)) for value in scaled]
    order = sorted(range(len(weights)), key=lambda index: -weights[index])
    kept = [index for index in order if weights[index] >= min_p][:top_k]
    total, reached, nucleus = sum(weights[index] for index in kept), 0.0, []
    for index in kept:
        if reached >= top_p * total:
            break
        nucleus.append(index)
        reached += weights[index]
    mass = sum(weights[index] for index in nucleus)
    return [weights[index] / mass if index in nucleus else 0.0 for index in range(len(weights))]


@given(st.data())
def test_probabilities_of_mixed_rows_are_those_of_sorting(data: st.DataObject) -> None:
    """Every row by its own filters, whatever its neighbours have."""
    count, vocab = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 7, 100, 700]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    # Distinct values: between equal ones sorting would choose.
    values = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(count)])
    logits = values / vocab * data.draw(st.sampled_from([0.5, 5.0, 30.0]))
    temperatures = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=count, max_size=count))
    top_k = data.draw(st.lists(st.integers(1, vocab), min_size=count, max_size=count))
    top_p = data.draw(st.lists(st.sampled_from([0.05, 0.333, 0.9, 1.0]), min_size=count, max_size=count))
    min_p = data.draw(st.lists(st.sampled_from([0.0, 0.0123, 0.3, 1.0]), min_size=count, max_size=count))
    rows = SampleRows(
        torch.zeros(count, dtype=torch.int64),
        torch.arange(count),
        torch.tensor([temperature or 1.0 for temperature in temperatures]),
        torch.tensor(top_k) if data.draw(st.booleans()) else None,
        torch.tensor(top_p) if data.draw(st.booleans()) else None,
        torch.tensor(min_p) if data.draw(st.booleans()) else None,
        torch.tensor(temperatures) == 0 if 0.0 in temperatures or data.draw(st.booleans()) else None,
    )
    expected = [
        filtered_by_sorting(
            logits[index].tolist(),
            temperatures[index],
            vocab if rows.top_k is None else top_k[index],
            1.0 if rows.top_p is None else top_p[index],
            0.0 if rows.min_p is None else min_p[index],
        )
        for index in range(count)
    ]

    torch.testing.assert_close(probabilities_reference(logits, rows), torch.tensor(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_draws_follow_the_filtered_distribution(filters: dict[str, float]) -> None:
    """Chi-square over 20,000 draws at p > 0.001, and nothing that was filtered out."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 1.5
    expected = filtered_by_sorting(
        logits.tolist(),
        filters.get("temperature", 1.0),
        int(filters.get("top_k", VOCAB)),
        filters.get("top_p", 1.0),
        filters.get("min_p", 0.0),
    )
    tokens = sample_reference(logits.expand(RUNS, VOCAB).clone(), make_rows(RUNS, **filters), TARGET_STREAM)

    assert misfit(tokens.bincount(minlength=VOCAB), torch.tensor(expected)) < P_001


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_penalties_are_those_of_each_token_and_its_own_text(dtype: torch.dtype) -> None:
    """Repetition for prompt and answer, frequency and presence for the answer; nothing without a text."""
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(7), dtype=dtype)
    logits[:, 3] = -math.inf
    given = logits.clone()
    texts = [([1, 2, 3], [2, 2, 5]), ([7], [])]
    seen = torch.zeros(2, VOCAB, dtype=torch.int32)
    for index, (prompt, answer) in enumerate(texts):
        seen[index, prompt] = 1
        for token in answer:
            seen[index, token] += 2
    own, values = [1, -1, 0, 0], [(1.5, 0.25, 0.5), (2.0, 1.0, 1.0), (1.25, -0.75, -1.5), (1.0, 0.0, 2.0)]
    penalties = Penalties(seen, torch.tensor(own), *torch.tensor(values).T.contiguous())

    penalised = penalised_reference(logits, penalties)

    for row, (text, (repetition, frequency, presence)) in enumerate(zip(own, values, strict=True)):
        prompt, answer = ([], []) if text < 0 else texts[text]
        for token in range(VOCAB):
            value = float(logits[row, token])
            if token in prompt or token in answer:
                value = value / repetition if value > 0 else value * repetition
            value -= frequency * answer.count(token) + presence * (token in answer)
            assert float(penalised[row, token]) == pytest.approx(value, rel=1e-6)
    assert torch.equal(penalised[1], given[1])
    assert torch.equal(logits, given)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_of_the_logits_before_penalties(temperature: float) -> None:
    """What is drawn pays; what is told is the model's own opinion."""
    logits = torch.tensor([[3.0, 2.0, -1.0]])
    seen = torch.tensor([[2, 0, 2]], dtype=torch.int32)
    penalties = Penalties(seen, torch.tensor([0]), torch.ones(1), torch.zeros(1), torch.tensor([1e4]))
    rows = replace(make_rows(1, temperature=temperature), penalties=penalties)

    tokens, logprobs = sample_with_logprobs_reference(logits, rows, TARGET_STREAM)

    assert tokens.tolist() == [1]
    torch.testing.assert_close(logprobs, logits.log_softmax(1)[:, 1])


def test_draws_of_equal_logits_are_uniform() -> None:
    """Ties are drawn between, and a filter whose border falls among equals keeps them all."""
    logits = torch.zeros(RUNS, VOCAB)
    for filters in ({}, {"top_k": 3}, {"top_p": 0.1}, {"min_p": 1.0}):
        tokens = sample_reference(logits.clone(), make_rows(RUNS, **filters), TARGET_STREAM)

        assert misfit(tokens.bincount(minlength=VOCAB), torch.ones(VOCAB)) < P_001


def test_draws_of_one_position_after_another_are_independent() -> None:
    """Pairs of neighbouring positions, at all 256 pairs of 16 tokens."""
    logits = torch.randn(16, generator=torch.Generator().manual_seed(2))
    tokens = sample_reference(logits.expand(2 * RUNS, 16).clone(), make_rows(2 * RUNS), TARGET_STREAM)
    pairs = (16 * tokens[::2] + tokens[1::2]).bincount(minlength=256)
    probs = logits.softmax(0)

    assert misfit(pairs, torch.outer(probs, probs)) < P_001


def test_draw_of_sparse_weights_is_the_same_with_and_without_the_shortcut() -> None:
    """Making noise only where it counts changes no token."""
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(200, 1000, generator=generator) * (torch.rand(200, 1000, generator=generator) < 0.02)
    weights[:, 17] = 0.5
    seeds, positions = torch.arange(200) - 100, torch.arange(200)

    assert torch.equal(
        draw_reference(weights, seeds, positions, TARGET_STREAM),
        draw_reference(weights, seeds, positions, TARGET_STREAM, is_sparse=True),
    )


def greedy_rows(logits: Tensor) -> Tensor:
    """The distributions at temperature 0."""
    return probabilities_reference(logits, make_rows(len(logits), temperature=0.0))


def test_greedy_takes_the_first_of_the_highest_even_where_probabilities_round_alike() -> None:
    """Logits that differ by less than their probabilities can tell."""
    logits = torch.tensor([[0.1, 0.1 + 1e-8, 0.0], [1.0, 1.0, 0.0], [-math.inf, -math.inf, -5.0]])
    logits[0, 1] = torch.nextafter(logits[0, 0], torch.tensor(1.0))

    assert greedy_rows(logits).argmax(1).tolist() == [1, 0, 2]


@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30])
def test_probabilities_of_extreme_logits_are_finite_and_sum_to_one(scale: float) -> None:
    """Large, tiny and masked logits, with every filter."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(5)) * scale
    logits[1, 1:] = -math.inf
    rows = make_rows(3, temperature=0.7, top_k=9, top_p=0.8, min_p=0.01)
    probs = probabilities_reference(logits, rows)

    torch.testing.assert_close(probs.sum(1), torch.ones(3))
    assert probs[1].tolist() == [1.0] + [0.0] * 49
