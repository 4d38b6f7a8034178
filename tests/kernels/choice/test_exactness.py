"""What the measure of distributions and tokens lets pass, and what it does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.choice.cases import ChoiceShape, build_probabilities, build_sample
from kernels.choice.exactness import probabilities_complaint, sample_complaint
from kernels.choice.sample import probabilities_reference, sample_with_logprobs_reference
from kernels.exactness import for_twin
from kernels.operation import Arguments

CPU = torch.device("cpu")
PEAKED = ChoiceShape(2, 500, top_k=(500, 20), top_p=(0.999, 1.0), scale=10.0)


def said_of(arguments: Arguments, probs: Tensor) -> str | None:
    """The complaint about these distributions."""
    return probabilities_complaint(for_twin(arguments, exact=True), probs.float())


def exact_of(arguments: Arguments) -> Tensor:
    """The distributions in float64."""
    return probabilities_reference(**for_twin(arguments, exact=True))


def factor(row: int, place: int, by: float) -> Callable[[Tensor], Tensor]:
    """Multiplies a row's entry, counted from its largest."""

    def changed(probs: Tensor) -> Tensor:
        probs = probs.clone()
        probs[row, probs[row].argsort(descending=True)[place]] *= by
        return probs

    return changed


@pytest.mark.parametrize("by", [1.0, 1 + 1e-6])
def test_probabilities_complaint_rounded_ones_pass(by: float) -> None:
    """Within float32's rounding, wherever the entry lies."""
    arguments = build_probabilities(PEAKED, CPU)

    for row, place in ((0, 0), (0, 3), (1, 19)):
        assert said_of(arguments, factor(row, place, by)(exact_of(arguments))) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (factor(0, 0, 1 + 1e-4), "an entry is off"),
        # Of a 10^12th of the largest.
        (factor(1, 19, 1.001), "an entry is off"),
        (factor(1, 19, 0.0), "1 entries are kept or left out"),
        (factor(0, 0, 0.0), "1 entries are kept or left out"),
        (factor(0, 0, math.nan), "is allowed"),
        (lambda probs: probs + 1e-20, "is allowed"),
        (lambda probs: probs[:1], "of shape"),
    ],
    ids=["largest", "smallest", "last-left-out", "first-left-out", "nan", "all-kept", "shape"],
)
def test_probabilities_complaint_wrong_ones_are_told(change: Callable[[Tensor], Tensor], expected: str) -> None:
    """Also what is far too small to show beside the largest entry."""
    arguments = build_probabilities(PEAKED, CPU)

    said = said_of(arguments, change(exact_of(arguments)))

    assert said is not None
    assert expected in said


@pytest.mark.parametrize("distance", [1e-8, -1e-8, 1e-4, -1e-4])
def test_probabilities_complaint_cut_may_be_on_either_side_of_a_sum_that_close(distance: float) -> None:
    """And on the right side alone where the sum is further from top_p than float32 rounds."""
    arguments = build_probabilities(ChoiceShape(1, 100, top_p=(0.5,)), CPU)
    exact = for_twin(arguments, exact=True)
    whole = exact["logits"].softmax(1)
    sums = whole.sort(descending=True).values.cumsum(1)[0]
    # The tenth entry is the last one needed, or is just not enough.
    exact["rows"].top_p[0] = sums[9] - distance

    for num_kept in (10, 11):
        least = whole.sort(descending=True).values[0, num_kept - 1]
        kept = whole * (whole >= least)
        said = probabilities_complaint(exact, (kept / kept.sum()).float())
        is_right = num_kept == (10 if distance > 0 else 11)
        assert (said is None) == (is_right or abs(distance) < 1e-6)


def test_sample_complaint_other_token_and_other_logprob_are_told() -> None:
    """Tokens are equal, and log-probabilities within rounding of peaked rows too."""
    arguments = build_sample(PEAKED, CPU)
    exact = for_twin(arguments, exact=True)
    tokens, logprobs = sample_with_logprobs_reference(**arguments)
    others = torch.stack((tokens[0], tokens[1] ^ 1))

    assert sample_complaint(exact, (tokens, logprobs)) is None
    assert "1 tokens are others" in str(sample_complaint(exact, (others, logprobs)))
    assert "an entry is off" in str(sample_complaint(exact, (tokens, logprobs + 1e-4)))
    assert "an entry is off" in str(sample_complaint(exact, (tokens, logprobs * math.nan)))
