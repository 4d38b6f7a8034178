"""Residual add and RMSNorm: the twin against float64."""

from __future__ import annotations

import pytest
import torch

from kernels.rows.norm import rms_norm_reference

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(1, 64), (3, 257), (0, 8)], ids=str)
def test_rms_norm_matches_float64(shape: tuple[int, int], offset: float, dtype: torch.dtype) -> None:
    """Rows over their root mean square, scaled by offset + weight, after the residual has joined."""
    generator = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(shape[1], generator=generator).to(dtype)

    normed, total = rms_norm_reference(x, weight, 1e-5, residual=residual, offset=offset)

    exact = x.double() + residual.double()
    expected = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (weight.double() + offset)
    tolerance = TOLERANCES[dtype]
    assert (normed.dtype, total.dtype) == (dtype, dtype)
    torch.testing.assert_close(total.double(), exact, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(normed.double(), expected, rtol=2 * tolerance, atol=2 * tolerance)


def test_rms_norm_without_residual_hands_back_its_input() -> None:
    """No residual is a residual of zero."""
    x = torch.randn(2, 16)

    normed, total = rms_norm_reference(x, torch.ones(16), 1e-6)

    assert torch.equal(total, x)
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(2))


def test_rms_norm_leaves_its_inputs_alone() -> None:
    """Neither input is written to."""
    x, residual = torch.randn(2, 16), torch.randn(2, 16)
    before = x.clone(), residual.clone()

    rms_norm_reference(x, torch.ones(16), 1e-6, residual=residual)

    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_rms_norm_with_an_offset_keeps_small_half_precision_weights() -> None:
    """1 + 2^-12 is 1 in bfloat16; the sum is taken in float32."""
    x = torch.full((1, 64), 256.0)
    weight = torch.full((64,), 2.0**-7, dtype=torch.bfloat16) + torch.full((64,), 2.0**-12, dtype=torch.bfloat16)

    normed, _ = rms_norm_reference(x, weight, 1e-6, offset=1.0)

    torch.testing.assert_close(normed, torch.full((1, 64), 1.0 + 2.0**-7 + 2.0**-12), rtol=1e-6, atol=0.0)
