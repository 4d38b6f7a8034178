"""Rows of activations rounded to eight bits by a scale of their own, for products with weights that are rounded too.

One program a row, which it holds in registers, or reads twice where it is too long for them. Torch twin:
`quantize_rows.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import QUANTIZED_DTYPES, check
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.rows.cases import rounding_cases, rounding_cost
from kernels.rows.checks import check_rows
from kernels.rows.quantize_rows import SMALLEST_SCALE, quantize_rows_reference
from kernels.rows.row_kernel import MAX_ROW, block_of, largest_of, rounded, row_stride
from kernels.tuning import row_config

_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


def prepare_quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], list[Launch]]:
    """Where x [rows, width] will be, rounded to int8 or float8_e4m3fn, and its scales [rows] float32; and what has to
    run for it. Raises KernelInputError.
    """
    check_rows("x", x)
    check(dtype in QUANTIZED_DTYPES, "dtype", "int8 or float8_e4m3fn", dtype)
    num_rows, width = x.shape
    stored, scales = x.new_empty(x.shape, dtype=dtype), x.new_empty(num_rows, dtype=torch.float32)
    block = min(block_of(width), MAX_ROW)
    arguments = {
        "x": x,
        "stored": stored,
        "scales": scales,
        "x_stride": row_stride(x),
        "WIDTH": width,
        "BLOCK": block,
    }
    launches = [Launch(_quantize_rows_kernel, (num_rows,), arguments, row_config(block))]
    return (stored, scales), launches if num_rows else []


@jit()
def _quantize_rows_kernel(
    x: tl.tensor, stored: tl.tensor, scales: tl.tensor, x_stride: int, WIDTH: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    stored += row * WIDTH
    places = tl.arange(0, BLOCK)
    if WIDTH <= BLOCK:
        numbers = tl.load(x + places, mask=places < WIDTH, other=0.0).to(tl.float32)
        largest = tl.abs(numbers)
    else:
        largest = tl.zeros([BLOCK], tl.float32)
        for first in tl.range(0, WIDTH, BLOCK):
            numbers = tl.load(x + first + places, mask=first + places < WIDTH, other=0.0)
            largest = tl.maximum(largest, tl.abs(numbers.to(tl.float32)))
    scale = tl.maximum(tl.max(largest, 0) / largest_of(stored.dtype.element_ty), _SMALLEST_SCALE)
    tl.store(scales + row, scale)
    if WIDTH <= BLOCK:
        tl.store(stored + places, rounded(numbers / scale, stored.dtype.element_ty), mask=places < WIDTH)
    else:
        for first in tl.range(0, WIDTH, BLOCK):
            numbers = tl.load(x + first + places, mask=first + places < WIDTH, other=0.0).to(tl.float32)
            result = rounded(numbers / scale, stored.dtype.element_ty)
            tl.store(stored + first + places, result, mask=first + places < WIDTH)


OP = Op(
    name="quantize_rows",
    launch=launched(prepare_quantize_rows),
    prepare=prepare_quantize_rows,
    reference=quantize_rows_reference,
    cases=rounding_cases,
    cost=rounding_cost,
)
