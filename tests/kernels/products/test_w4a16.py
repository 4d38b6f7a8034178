"""Rounding to four bits a number, the packed layout, and products with such weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.products.w4a16 import (
    NF4_TABLE,
    GroupWeight,
    is_tileable,
    pack_codes,
    quantize_int4,
    quantize_nf4,
    tiled,
    w4a16_linear_reference,
)

GROUP_SIZES = (64, 128)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    group_size=st.sampled_from(GROUP_SIZES),
    symmetric=st.booleans(),
    shift=st.sampled_from((0.0, 0.05, -3.0)),
    magnitude=st.sampled_from((1e-3, 1.0)),
)
def test_quantize_int4_is_within_half_a_scale(
    seed: int, group_size: int, symmetric: bool, shift: float, magnitude: float
) -> None:
    """No number between the levels is off by more than half its group's scale, wherever the group lies; and none is
    outside of them where they reach to the group's ends.
    """
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(seed)) * magnitude + shift

    rounded = quantize_int4(weight, group_size, symmetric=symmetric)

    scales = rounded.scales.double().repeat_interleave(group_size, dim=1)
    error = (weight.double() - rounded.dequantized(torch.float32).double()).abs()
    steps = weight.double() / scales
    # The scale itself is rounded to fp16, by 2^-11 of up to 15 steps.
    is_between = (steps > -8.5) & (steps < 7.5) if symmetric else torch.ones_like(steps, dtype=torch.bool)
    assert (error <= scales.abs() * (0.5 + 15 * 2.0**-11))[is_between].all()
    assert rounded.group_size == group_size
    assert (rounded.zeros is None) == symmetric


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), group_size=st.sampled_from(GROUP_SIZES), shift=st.sampled_from((0.0, 0.5, -3.0)))
def test_quantize_int4_symmetric_loses_less_than_levels_from_end_to_end(
    seed: int, group_size: int, shift: float
) -> None:
    """Against 15 levels whose ends are the group's largest number and its negative."""
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(seed)) + shift
    scales = weight.view(6, -1, group_size).abs().amax(2).repeat_interleave(group_size, 1) / 7

    error = quantize_int4(weight, group_size).dequantized(torch.float32) - weight

    assert error.norm() < ((weight / scales).round() * scales - weight).norm()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), group_size=st.sampled_from(GROUP_SIZES))
def test_quantize_nf4_takes_the_nearest_entry(seed: int, group_size: int) -> None:
    """Each number becomes the table's nearest entry times its group's largest."""
    weight = torch.randn(4, 256, generator=torch.Generator().manual_seed(seed))

    rounded = quantize_nf4(weight, group_size)

    scales = rounded.scales.double().repeat_interleave(group_size, dim=1)
    entries = torch.tensor(NF4_TABLE, dtype=torch.float64)
    best = (weight.double() / scales).unsqueeze(2).sub(entries).abs().amin(2) * scales
    error = (weight.double() - rounded.dequantized(torch.float32).double()).abs()
    torch.testing.assert_close(error, best, rtol=1e-4, atol=1e-6)


def test_pack_codes_puts_the_even_input_low() -> None:
    """The layout that kernels and checkpoints rely on."""
    codes = torch.tensor([[1, 2, 15, 0]])

    packed = pack_codes(codes)

    assert packed.tolist() == [[0x21, 0x0F]]
    assert torch.equal(GroupWeight(packed, torch.ones(1, 1)).codes(), codes.to(torch.uint8))


@pytest.mark.parametrize("kind", ["symmetric", "zero-point", "nf4"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)], ids=["f32", "bf16"])
def test_w4a16_linear_equals_product_with_dequantized_weight(kind: str, dtype: torch.dtype, bound: float) -> None:
    """The product is that of the dequantized weight, as near as the model's type allows."""
    generator = torch.Generator().manual_seed(5)
    dense, x = torch.randn(48, 256, generator=generator), torch.randn(3, 256, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype)
    weight = quantize_nf4(dense, 64) if kind == "nf4" else quantize_int4(dense, 64, symmetric=kind == "symmetric")

    out = w4a16_linear_reference(x, weight, bias)

    expected = x.double() @ weight.dequantized(torch.float64).T + bias.double()
    assert (out.double() - expected).norm() <= bound * expected.norm()


def test_quantize_zero_group_stays_zero() -> None:
    """A group of zeros divides by no zero, in any of the kinds."""
    weight = torch.zeros(2, 128)

    for rounded in (
        quantize_int4(weight, 64),
        quantize_int4(weight, 64, symmetric=False),
        quantize_nf4(weight, 64),
    ):
        assert rounded.dequantized(torch.float32).eq(0).all()


@pytest.mark.parametrize("kind", ["symmetric", "zero-point", "nf4"])
@pytest.mark.parametrize(("num_inputs", "group_size"), [(256, 128), (96, 32), (640, 64), (1024, 512), (384, 384)])
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_tiled_weight_is_the_same_weight(kind: str, num_inputs: int, group_size: int, scale_dtype: torch.dtype) -> None:
    """No code, scale of either sign or zero point is lost in the kernel's layout, filled up or cut into its groups."""
    generator = torch.Generator().manual_seed(group_size)
    shape = (6, num_inputs // group_size)
    packed = torch.randint(0, 256, (6, num_inputs // 2), generator=generator).to(torch.uint8)
    zeros = torch.randint(0, 16, shape, generator=generator).to(torch.uint8) if kind == "zero-point" else None
    scales = torch.randn(shape, generator=generator).to(scale_dtype)
    weight = GroupWeight(packed, scales, zeros, is_nf4=kind == "nf4")

    laid_out = tiled(weight, torch.float32)

    assert torch.equal(laid_out.dequantized(torch.float32), weight.dequantized(torch.float32))
    assert laid_out.group_size in (32, 64, 128)
    assert laid_out.words.shape == (6, -(-num_inputs // 128) * 16)


def test_is_tileable_needs_whole_quarters_and_nf4_half_precision() -> None:
    """What remains is unpacked at load."""
    pairs, quarters = quantize_int4(torch.ones(2, 96), 6), quantize_int4(torch.ones(2, 96), 96)
    nf4 = quantize_nf4(torch.ones(2, 64), 32)

    assert not is_tileable(pairs, torch.bfloat16)
    assert is_tileable(quarters, torch.float32)
    assert is_tileable(nf4, torch.bfloat16)
    assert not is_tileable(nf4, torch.float32)
