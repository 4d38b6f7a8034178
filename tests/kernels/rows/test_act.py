"""Gated activations: the twin against float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.rows.act import gated_activation_reference


def exact_activation(gate: Tensor, kind: str) -> Tensor:
    """The textbook formulas."""
    if kind == "silu":
        return gate / (1 + (-gate).exp())
    if kind == "gelu":
        return gate * (1 + torch.erf(gate / math.sqrt(2))) / 2
    return gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(1, 2), (5, 74), (0, 6)], ids=str)
def test_gated_activation_matches_float64(
    shape: tuple[int, int], kind: str, dtype: torch.dtype, tolerance: float
) -> None:
    """act(first half) * second half, and the input stays as it was."""
    gate_up = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(2))).to(dtype)
    before = gate_up.clone()

    found = gated_activation_reference(gate_up, kind)

    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = exact_activation(gate, kind) * up
    assert found.dtype == dtype
    assert torch.equal(gate_up, before)
    torch.testing.assert_close(found.double(), expected, rtol=2 * tolerance, atol=2 * tolerance)


def test_gated_activation_of_unknown_kind_names_the_known_ones() -> None:
    """A kind nobody implements is refused."""
    with pytest.raises(ValueError, match=r"'relu' is unknown; known are silu, gelu and gelu_tanh"):
        gated_activation_reference(torch.zeros(1, 4), "relu")
