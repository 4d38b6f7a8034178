"""Rounding to eight bits a number and the products with such weights, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.products.w8 import quantize_w8, w8_linear_reference, w8a8_linear_reference

SIZES = st.tuples(st.integers(1, 20), st.integers(1, 70))


@settings(max_examples=50, deadline=None)
@given(size=SIZES, seed=st.integers(0, 1000), magnitude=st.sampled_from((1e-6, 0.02, 1.0, 1e4)))
def test_quantize_w8_int8_is_within_half_a_scale(size: tuple[int, int], seed: int, magnitude: float) -> None:
    """No number is off by more than half its row's scale, and a row's largest keeps its size."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * magnitude

    rounded = quantize_w8(x, torch.int8)

    error = (x.double() - rounded.stored.double() * rounded.scales.double().unsqueeze(1)).abs()
    assert (error <= rounded.scales.double().unsqueeze(1) * 0.5001).all()
    assert rounded.stored.abs().amax(1).eq(127).all()


@settings(max_examples=50, deadline=None)
@given(size=SIZES, seed=st.integers(0, 1000))
def test_quantize_w8_fp8_is_within_a_sixteenth_of_the_number(size: tuple[int, int], seed: int) -> None:
    """Numbers that are normal in e4m3 keep three bits behind the point: 2^-4 of their size."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))

    rounded = quantize_w8(x, torch.float8_e4m3fn)

    scales = rounded.scales.double().unsqueeze(1)
    error = (x.double() - rounded.stored.double() * scales).abs()
    is_normal = x.double().abs() / scales >= 2.0**-6
    assert (error[is_normal] <= x.double().abs()[is_normal] * 2.0**-4 * 1.0001).all()
    assert (error <= torch.maximum(x.double().abs() * 2.0**-4, scales * 2.0**-10) * 1.0001).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_quantize_w8_zero_row_stays_zero(dtype: torch.dtype) -> None:
    """A row of zeros divides by no zero."""
    rounded = quantize_w8(torch.zeros(2, 5), dtype)

    assert rounded.dequantized(torch.float32).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
@pytest.mark.parametrize(("model_dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)], ids=["f32", "bf16"])
@pytest.mark.parametrize("tokens", [1, 7])
def test_w8_linear_equals_product_with_dequantized_weight(
    dtype: torch.dtype, model_dtype: torch.dtype, bound: float, tokens: int
) -> None:
    """The product is that of the dequantized weight, as near as the model's type allows."""
    generator = torch.Generator().manual_seed(3)
    weight = quantize_w8(torch.randn(48, 80, generator=generator), dtype)
    x = torch.randn(tokens, 80, generator=generator).to(model_dtype)
    bias = torch.randn(48, generator=generator).to(model_dtype)

    out = w8_linear_reference(x, weight, bias)

    expected = x.double() @ (weight.stored.double() * weight.scales.double().unsqueeze(1)).T + bias.double()
    assert out.dtype == model_dtype
    assert (out.double() - expected).norm() <= bound * expected.norm()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_w8a8_linear_rounds_each_token_by_its_own_scale(dtype: torch.dtype) -> None:
    """A huge neighbour does not cost a small token its digits."""
    generator = torch.Generator().manual_seed(4)
    weight = quantize_w8(torch.randn(32, 4096, generator=generator), dtype)
    small = torch.randn(1, 4096, generator=generator)

    alone = w8a8_linear_reference(small, weight)
    beside = w8a8_linear_reference(torch.cat([small * 1e5, small]), weight)

    expected = small.double() @ weight.dequantized(torch.float32).double().T
    assert torch.equal(beside[1:], alone)
    assert (alone.double() - expected).norm() <= (1e-2 if dtype == torch.int8 else 4e-2) * expected.norm()
