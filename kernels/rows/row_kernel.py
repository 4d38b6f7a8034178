"""What the kernels that go row by row have in common: blocks that hold a row, and rows rounded to eight bits."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import MODEL_DTYPES, QUANTIZED_DTYPES, check, check_tensor
from kernels.jit import jit, tl
from kernels.products.w8 import SMALLEST_SCALE

MAX_ROW = 16384
"""Numbers of the longest row that fits into one program's registers."""
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)
_MAGIC = tl.constexpr(1.5 * 2.0**23)
"""Added and taken away again, it leaves a float32 rounded to the nearest whole number, ties to even."""


def block_of(width: int) -> int:
    """The power of two that holds a row."""
    return 1 << (width - 1).bit_length()


def row_stride(x: Tensor) -> int:
    """From one row of x [rows, width] to the next; of a single row, where any would do, the one that compiles alike."""
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]


def check_rows(argument: str, x: Tensor, *, like: Tensor | None = None, max_width: int | None = None) -> None:
    """[rows, width] in a model's type, rows without gaps; `like`: of that one's type, shape and device.

    Raises KernelInputError.
    """
    dtypes, shape = (MODEL_DTYPES, (None, None)) if like is None else ((like.dtype,), like.shape)
    check_tensor(argument, x, dtypes, shape, device=(x if like is None else like).device, packed=1)
    check(x.shape[1] > 0, argument, "of rows of one number or more", list(x.shape))
    if max_width is not None:
        check(x.shape[1] <= max_width, argument, f"of rows of at most {max_width} numbers", x.shape[1])


def empty_rows(x: Tensor, width: int, quantized: torch.dtype | None) -> tuple[Tensor, Tensor | None]:
    """Room for a row of `width` for each of x's: (rows in x's type, None), or (quantized rows, scales [rows] float32).

    Raises KernelInputError.
    """
    if quantized is None:
        return x.new_empty((x.shape[0], width)), None
    check(quantized in QUANTIZED_DTYPES, "quantized", "int8, float8_e4m3fn or None", quantized)
    return x.new_empty((x.shape[0], width), dtype=quantized), x.new_empty(x.shape[0], dtype=torch.float32)


@jit()
def rounded(scaled: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """float32 numbers as int8 or float8: the nearest, and the largest where they are beyond it."""
    if dtype == tl.int8:
        return (tl.minimum(tl.maximum(scaled, -127.0), 127.0) + _MAGIC - _MAGIC).to(tl.int8)
    else:
        return tl.minimum(tl.maximum(scaled, -448.0), 448.0).to(dtype)


@jit()
def largest_of(dtype: tl.constexpr) -> tl.constexpr:
    """The number of the type that the largest of a row becomes."""
    return 127.0 if dtype == tl.int8 else 448.0


@jit()
def store_row(row: tl.tensor, out: tl.tensor, scale: tl.tensor, places: tl.tensor, is_place: tl.tensor) -> None:
    """A row of float32 numbers, zero where they are no place of it, to `out`; quantized where `scale` is an address."""
    if scale is not None:
        value = tl.maximum(tl.max(tl.abs(row), 0) / largest_of(out.dtype.element_ty), _SMALLEST_SCALE)
        tl.store(scale, value)
        tl.store(out + places, rounded(row / value, out.dtype.element_ty), mask=is_place)
    else:
        tl.store(out + places, row.to(out.dtype.element_ty), mask=is_place)
