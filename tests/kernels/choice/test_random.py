"""The generator is Philox as published, as Triton has it, and its draws are exponential."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.choice.random import (
    TARGET_STREAM,
    _philox_torch,
    negated_exponentials_at_reference,
    negated_exponentials_reference,
    philox_reference,
    uniforms_reference,
)

PROGRAM = Path(__file__).parents[2] / "support" / "kernels" / "triton_random.py"


def row(value: int) -> torch.Tensor:
    """One row's seed or position."""
    return torch.tensor([value])


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        (7, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        (10, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ],
)
def test_philox_gives_the_published_words(rounds: int, words: list[int]) -> None:
    """The known answers of Random123 for the key and the counter zero."""
    found = philox_reference(row(0), row(0), 0, torch.zeros((1, 1), dtype=torch.int64), rounds=rounds)

    assert [word & 0xFFFFFFFF for word in found.flatten().tolist()] == words


def test_philox_gives_the_same_words_on_the_host_and_on_a_device() -> None:
    """numpy and torch, in blocks and in one piece, for seeds of either sign and large positions."""
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567])
    positions = torch.tensor([0, 1, 2**31, 2**32 - 1, 7, 131071])
    indices = torch.arange(5000).unsqueeze(0)

    assert torch.equal(
        philox_reference(seeds, positions, 2, indices), _philox_torch(seeds, positions, 2, indices, rounds=7)
    )


def test_philox_gives_the_words_of_triton() -> None:
    """Bit for bit, with Triton's interpreter; and the uniform numbers of `tl.rand`."""
    pytest.importorskip("triton")
    cases = [(0, 0, 0, 8, 10), (1234567, 3, 1, 16, 7), (2**62 + 99, 131071, 2, 64, 7), (77, 0, 0, 64, 10)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    program = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(cases)], env=environment, capture_output=True, text=True, check=True
    )

    for (seed, position, stream, counters, rounds), (words, uniforms) in zip(
        cases, json.loads(program.stdout), strict=True
    ):
        indices = torch.arange(counters).unsqueeze(0)
        found = philox_reference(row(seed), row(position), stream, indices, rounds=rounds)
        assert found[0].tolist() == words
        plain = philox_reference(row(seed), row(0), 0, indices, rounds=rounds)
        assert uniforms_reference(plain[0, 0]).tolist() == uniforms


def test_uniforms_stay_below_one_and_reach_zero() -> None:
    """The extreme words."""
    words = torch.tensor([0, -1, 2**31 - 1, -(2**31)], dtype=torch.int32)

    assert uniforms_reference(words).tolist() == [0.0, 0.0, 1 - 2**-24, 1 - 2**-24]


def test_exponentials_have_the_moments_and_quantiles_of_the_distribution() -> None:
    """400,000 draws: mean 1, variance 1, and the shares below some bounds within 4 sigma."""
    draws = -negated_exponentials_reference(torch.arange(4), torch.full((4,), 9), TARGET_STREAM, 100_000).double()
    count = draws.numel()

    assert abs(draws.mean() - 1) < 4 * count**-0.5
    assert abs(draws.var() - 1) < 4 * (8 / count) ** 0.5
    for bound in (1e-4, 0.01, 0.5, 1.0, 3.0, 8.0):
        share = 1 - torch.exp(torch.tensor(-bound, dtype=torch.float64))
        assert abs((draws < bound).double().mean() - share) < 4 * (share * (1 - share) / count) ** 0.5
    assert draws.min() > 0
    assert draws.isfinite().all()


@pytest.mark.parametrize("num_entries", [1, 2, 4, 31, 1000])
def test_exponentials_of_single_entries_are_those_of_the_row(num_entries: int) -> None:
    """Whether a row's noise is made as a whole or entry by entry changes no bit."""
    seeds, positions = torch.tensor([5, -6]), torch.tensor([10, 2**31])
    whole = negated_exponentials_reference(seeds, positions, 1, num_entries)
    entries = torch.arange(num_entries)
    for index in range(2):
        single = negated_exponentials_at_reference(
            seeds[index].expand(num_entries), positions[index].expand(num_entries), 1, num_entries, entries
        )

        assert torch.equal(single, whole[index])


def test_exponentials_differ_by_seed_position_stream_and_entry() -> None:
    """Nothing is drawn twice."""
    seeds, positions = torch.tensor([1, 1, 2, 1 + 2**32]), torch.tensor([1, 2, 1, 1])
    draws = torch.stack([negated_exponentials_reference(seeds, positions, stream, 50) for stream in range(3)])

    # Of 600 draws of 31 bits two are equal with probability 1e-4.
    assert len(draws.unique()) == draws.numel()
