"""Rows rounded to eight bits, each by a scale of its own."""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_SCALE = 2.0**-100
"""Floor of a scale, so that a row of zeros divides."""


def quantize_rows_reference(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [rows, width] as int8 (symmetric) or float8_e4m3fn, and its scales [rows] float32.

    A number becomes the nearest of the type, a row's largest the type's own largest. The error is at most scale / 2 in
    int8, and 2^-4 of the number in float8 where it is no subnormal.
    """
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    x = x.float()
    scales = (x.abs().amax(1, keepdim=True) / largest).clamp_(min=SMALLEST_SCALE)
    scaled = (x / scales).clamp_(-largest, largest)
    return (scaled.round_() if dtype == torch.int8 else scaled).to(dtype), scales.squeeze(1)
