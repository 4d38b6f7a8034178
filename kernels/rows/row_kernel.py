"""What the kernels that go row by row have in common: blocks that hold a row, and rows rounded to eight bits."""

from __future__ import annotations

from torch import Tensor

from kernels.jit import jit, tl

MAX_ROW = 16384
"""Numbers of the longest row that fits into one program's registers."""
_MAGIC = tl.constexpr(1.5 * 2.0**23)
"""Added and taken away again, it leaves a float32 rounded to the nearest whole number, ties to even."""


def block_of(width: int) -> int:
    """The power of two that holds a row."""
    return 1 << (width - 1).bit_length()


def row_stride(x: Tensor) -> int:
    """From one row of x [rows, width] to the next; of a single row, where any would do, the one that compiles alike."""
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]


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
