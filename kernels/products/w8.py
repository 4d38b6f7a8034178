"""Matrix products with weights of eight bits a number, one scale a row: the torch twins.

int8 or float8_e4m3fn weights with activations in the model's type, or rounded token by token to theirs (W8A8).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.rows.quantize_rows import quantize_rows_reference


@dataclass(frozen=True, slots=True)
class RowWeight:
    """A weight [out, in]: `stored` int8 or float8_e4m3fn times `scales` [out] float32."""

    stored: Tensor
    scales: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of numbers and scales."""
        return self.stored.nbytes + self.scales.nbytes

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] in `dtype`."""
        return (self.stored.float() * self.scales.unsqueeze(1)).to(dtype)


def quantize_w8(weight: Tensor, dtype: torch.dtype) -> RowWeight:
    """A weight [out, in] rounded to int8 or float8_e4m3fn, each row by the scale of its largest number."""
    return RowWeight(*quantize_rows_reference(weight, dtype))


def w8_linear_reference(x: Tensor, weight: RowWeight, bias: Tensor | None = None) -> Tensor:
    """x [tokens, in] times the weight's transpose, plus bias [out]: [tokens, out] in x's type.

    The stored numbers are exact in bf16 and fp16, so the scale is applied to the sum.
    """
    out = functional.linear(x, weight.stored.to(x.dtype)) * weight.scales
    return (out if bias is None else out + bias).to(x.dtype)


def w8a8_linear_reference(x: Tensor, weight: RowWeight, bias: Tensor | None = None) -> Tensor:
    """As `w8_linear_reference`, with each token of x rounded to the weight's type by its own scale.

    The sum is exact in int8, and in float8 as near as float64 is.
    """
    stored, scales = quantize_rows_reference(x, weight.stored.dtype)
    # Sums of up to 2^53 / 127^2 products are exact; an int32 product is not to be had on every device.
    total = stored.double() @ weight.stored.double().T
    out = total * scales.unsqueeze(1) * weight.scales
    return (out if bias is None else out + bias).to(x.dtype)
