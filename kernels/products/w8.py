"""Matrix products with weights of eight bits a number, one scale a row: the torch twins, and how rows are rounded.

int8 or float8_e4m3fn weights with activations in the model's type, or rounded token by token to theirs (W8A8).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_SCALE = 2.0**-100
"""Floor of a scale, so that a row of zeros divides."""


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


def quantize_rows(x: Tensor, dtype: torch.dtype) -> RowWeight:
    """Rows of x [n, width] rounded to the nearest of int8 (symmetric) or float8_e4m3fn, the largest to the type's own.

    The error is at most scale / 2 in int8, and 2^-4 of the number in float8 where it is no subnormal.
    """
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    x = x.float()
    scales = (x.abs().amax(1, keepdim=True) / largest).clamp_(min=SMALLEST_SCALE)
    scaled = (x / scales).clamp_(-largest, largest)
    return RowWeight((scaled.round_() if dtype == torch.int8 else scaled).to(dtype), scales.squeeze(1))


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
    rounded = quantize_rows(x, weight.stored.dtype)
    # Sums of up to 2^53 / 127^2 products are exact; an int32 product is not to be had on every device.
    total = rounded.stored.double() @ weight.stored.double().T
    out = total * rounded.scales.unsqueeze(1) * weight.scales
    return (out if bias is None else out + bias).to(x.dtype)
