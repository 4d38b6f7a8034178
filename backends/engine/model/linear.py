"""Linear layers behind one call, whatever their weights are kept in.

On the CPU weights are laid out once for oneDNN, which halves the time of a step or better:

    768 -> 4096, us, one thread    functional.linear    packed    int8 dynamic    int8 weight-only
    1 token, bf16                                773       322             129                 367
    8 tokens, bf16                               989       542             470                 838
    64 tokens, bf16                             3120      2440               -                7791
    1 token / 8 tokens, float32           647 / 1380  318 / 562              -                   -

(AMD EPYC with avx512_vnni and avx512_bf16, torch 2.13, CPU time beside other work: ratios count.) Torch has no public
name for these operations; they are what its compiler emits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.errors import ModelError
from kernels.dispatch import QuantizedProduct
from kernels.products.quantized_product import quantized_product_reference
from kernels.products.w4a16 import SYMMETRIC_ZERO, GroupWeight, quantize_int4, quantize_nf4
from kernels.products.w8 import RowWeight, quantize_w8

QUANTIZATIONS = ("int8", "w8a8", "int4", "nf4", "fp8")
FOUR_BITS = ("int4", "nf4")
OUTPUT_LAYER = "lm_head"
"""The module whose outputs are the logits; tied models have none of its own."""
DEFAULT_GROUP_SIZE = 128

SMALLEST_PACKED_FLOAT32 = 2**18
"""Numbers below which float32 is quicker as it came: 20 against 36 us at 256 -> 512, both 55 at 256 -> 1408."""
INT4_GROUP_SIZES = (32, 64, 128, 256)
"""What torch's product takes on the CPU, for a multiple of 16 outputs; other 4-bit weights are unpacked at load."""
WIDENED_FROM_TOKENS = 4
"""From so many on, half-precision weights are multiplied in float32 where the processor has no instructions for theirs:
850 against 990 us at 4 tokens of 640 -> 1792, 5100 against 15500 at 64 (AVX2, one thread, CPU time)."""
WIDENED_NUMBERS = 2**22
"""Weights that are widened at once, so that a large layer needs no float32 copy of its own."""
PACKED_FOR_TOKENS = 32
"""What the packed layout is chosen for; measured as quick at 1 and at 256 tokens as one that is made for them."""


class Linear(Protocol):
    """x [tokens, in] -> x W^T + b [tokens, out], in x's type."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are kept."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""


@dataclass(frozen=True, slots=True)
class BuiltLinear:
    """A Linear that is one function of its input."""

    run: Callable[[Tensor], Tensor]
    num_bytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        return self.run(x)


def make_linear(
    weight: Tensor,
    bias: Tensor | None,
    *,
    quantization: str | None = None,
    group_size: int = DEFAULT_GROUP_SIZE,
    smoothing: Tensor | None = None,
    product: QuantizedProduct = quantized_product_reference,
) -> Linear:
    """A linear layer of `weight` [out, in] and `bias` [out] in the model's type, rounded to `quantization`.

    None keeps the weight; "int8", "fp8": one scale a row; "w8a8": int8 activations too, a scale a token; "int4", "nf4":
    one scale a group of `group_size` inputs, fewer where that does not divide them. `smoothing` [in] moves range from
    activations to weights before rounding (see `quantize.smoothing_scales`). On the CPU "int8" rounds activations as
    "w8a8" does, since it is several times quicker, and fp8 and nf4, for which it has no instruction, are rounded and
    then kept in the model's type. `product` is that of the engine's operations, for what is not on the CPU.
    Raises ValueError for another quantization, ModelError for inputs that have no even group size.
    """
    if smoothing is not None:
        smoothed = make_linear(
            weight * smoothing, bias, quantization=quantization, group_size=group_size, product=product
        )
        inverse = smoothing.reciprocal().to(weight.dtype)
        return BuiltLinear(lambda x: smoothed(x * inverse), smoothed.num_bytes + inverse.nbytes)
    if quantization is None:
        return _dense(weight, bias)
    quantized = quantize_weight(weight, quantization, group_size=group_size)
    round_input = quantization == "w8a8"
    return quantized_linear(quantized, bias, dtype=weight.dtype, round_input=round_input, product=product)


def quantize_weight(
    weight: Tensor, quantization: str, *, group_size: int = DEFAULT_GROUP_SIZE, symmetric: bool = True
) -> RowWeight | GroupWeight:
    """`weight` [out, in] rounded as `make_linear` says, and raises."""
    match quantization:
        case "int8" | "w8a8":
            return quantize_w8(weight, torch.int8)
        case "fp8":
            return quantize_w8(weight, torch.float8_e4m3fn)
        case "int4" | "nf4":
            group_size = math.gcd(group_size, weight.shape[1])
            if group_size % 2:
                raise ModelError(f"{weight.shape[1]} inputs cannot be cut into groups for {quantization}; use int8")
            if quantization == "nf4":
                return quantize_nf4(weight, group_size)
            return quantize_int4(weight, group_size, symmetric=symmetric)
    raise ValueError(f"quantization {quantization!r} is unknown; known are {', '.join(QUANTIZATIONS)}")


def quantized_linear(
    weight: RowWeight | GroupWeight,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    round_input: bool = False,
    product: QuantizedProduct = quantized_product_reference,
) -> Linear:
    """A linear layer of a weight that is rounded already; `dtype` is the model's, that of the inputs to come.

    `round_input`: int8 weights meet activations that are rounded to int8, a scale a token. `product`: as `make_linear`.
    """
    if weight.scales.device.type == "cpu":
        linear = _cpu_linear(weight, bias, dtype)
        if linear is not None:
            return linear
    return BuiltLinear(*product(weight, bias, dtype=dtype, round_input=round_input))


def _cpu_linear(weight: RowWeight | GroupWeight, bias: Tensor | None, dtype: torch.dtype) -> Linear | None:
    """What is quicker there than the twins; None where nothing is."""
    if isinstance(weight, GroupWeight):
        if weight.is_nf4 or weight.group_size not in INT4_GROUP_SIZES or weight.packed.shape[0] % 16:
            return _dense(weight.dequantized(dtype), bias)
        return _cpu_int4(weight, bias)
    if weight.stored.dtype != torch.int8:
        return _dense(weight.dequantized(dtype), bias)
    return _cpu_int8(weight, bias) if _has_onednn() else None


def _dense(weight: Tensor, bias: Tensor | None) -> Linear:
    if not is_packable(weight):
        if (
            weight.device.type == "cpu"
            and weight.dtype in (torch.bfloat16, torch.float16)
            and not _is_native(weight.dtype)
        ):
            return _widened(weight, bias)
        return BuiltLinear(lambda x: functional.linear(x, weight, bias), weight.nbytes)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_TOKENS)  # noqa: SLF001
    pointwise = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001

    def run(x: Tensor) -> Tensor:
        out: Tensor = pointwise(x, packed, bias, "none", [], "")
        return out

    return BuiltLinear(run, weight.nbytes)


def _widened(weight: Tensor, bias: Tensor | None) -> Linear:
    """A half-precision layer on a processor that multiplies in float32 only: few tokens as they are, for whom reading
    the weights counts, many by weights that are widened part by part.
    """
    num_rows = max(1, WIDENED_NUMBERS // weight.shape[1])
    rows = [slice(start, start + num_rows) for start in range(0, weight.shape[0], num_rows)]

    def run(x: Tensor) -> Tensor:
        if x.shape[0] < WIDENED_FROM_TOKENS:
            return functional.linear(x, weight, bias)
        wide = x.float()
        out = x.new_empty(x.shape[0], weight.shape[0])
        for part in rows:
            out[:, part] = functional.linear(wide, weight[part].float())
        return out if bias is None else out.add_(bias)

    return BuiltLinear(run, weight.nbytes)


def is_packable(weight: Tensor) -> bool:
    """Whether a layer of it keeps a copy that is laid out for oneDNN, instead of the weight itself."""
    if weight.device.type != "cpu" or not _has_onednn():
        return False
    if weight.dtype == torch.bfloat16:
        return _is_native(torch.bfloat16)
    return weight.dtype == torch.float32 and weight.numel() >= SMALLEST_PACKED_FLOAT32


def _is_native(dtype: torch.dtype) -> bool:
    """Whether the processor has instructions for products in bfloat16 or float16."""
    if not _has_onednn():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())


def _cpu_int8(weight: RowWeight, bias: Tensor | None) -> Linear:
    """int8 weights by uint8 activations that are shifted by half their range, each token over its own largest number.

    oneDNN falls back to a loop, 500 times slower, where the activations are int8. Processors without VNNI add pairs of
    products up in 16 bits, in which two of full range would be cut off: there activations have seven bits.
    """
    middle = 128 if torch.cpu._is_vnni_supported() else 64  # noqa: SLF001
    levels = middle - 1.0
    packed = torch.ops.onednn.qlinear_prepack(weight.stored, None)
    scales, zeros = weight.scales / levels, torch.zeros_like(weight.scales, dtype=torch.int32)
    pointwise = torch.ops.onednn.qlinear_pointwise.default

    has_bfloat16 = _is_native(torch.bfloat16)

    # Adding it rounds to the nearest, for the cut to uint8 drops what is behind the point.
    shift = torch.tensor([middle + 0.5])

    def run(x: Tensor) -> Tensor:
        # An output in a type that the processor has no instructions for would fall back to the loop as well.
        dtype = x.dtype if x.dtype == torch.bfloat16 and has_bfloat16 else torch.float32
        if x.shape[0] == 1:
            peak = x.abs().amax().item() or 1.0
            rounded = torch.add(shift, x, alpha=levels / peak).to(torch.uint8)
            out: Tensor = pointwise(rounded, peak, middle, packed, scales, zeros, bias, 1.0, 0, dtype, "none", [], "")
            return out.to(x.dtype)
        peaks = x.abs().amax(1, keepdim=True)
        # A token of zeros is 0 / 0 here, and set right by its peak.
        rounded = (x / peaks.float()).mul_(levels).add_(shift).to(torch.uint8)
        out = pointwise(rounded, 1.0, middle, packed, scales, zeros, None, 1.0, 0, dtype, "none", [], "").mul_(peaks)
        return (out if bias is None else out.add_(bias)).to(x.dtype)

    return BuiltLinear(run, weight.num_bytes)


def _cpu_int4(weight: GroupWeight, bias: Tensor | None) -> Linear:
    """int4 by torch's own product: for one token and little memory. Many tokens are slower than with any other kind."""
    group_size = weight.group_size
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.codes().int(), 1)  # noqa: SLF001
    scales = weight.scales.float()
    # The product knows (code - 8) * scale + shift.
    shifts = torch.zeros_like(scales) if weight.zeros is None else (SYMMETRIC_ZERO - weight.zeros.float()) * scales
    scales_and_shifts = torch.stack((scales.T, shifts.T), dim=2).bfloat16().contiguous()
    product = torch.ops.aten._weight_int4pack_mm_for_cpu.default  # noqa: SLF001

    def run(x: Tensor) -> Tensor:
        # In float32 the product is a plain loop, 30 times slower.
        out: Tensor = product(x.bfloat16().contiguous(), packed, group_size, scales_and_shifts).to(x.dtype)
        return out if bias is None else out.add_(bias)

    return BuiltLinear(run, packed.nbytes + scales_and_shifts.nbytes)
