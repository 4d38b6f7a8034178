"""Matrix products with int8 or float8 weights, one scale an output: of rows in a model's type, or rounded as they are.

Stored numbers are exact in the type that they meet the rows in, so the scale is applied to the sum. Few rows and many
take two kernels, as in `w4a16_kernel.py`. Torch twin: `w8.py`. `w8a8_kernel.py` rounds the rows before.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

from torch import Tensor

from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.products.cases import product_cost, w8_cases
from kernels.products.checks import check_product, check_row_weight
from kernels.products.tile_kernel import place_of_tile, product_launches, store_product
from kernels.products.w8 import RowWeight, w8_linear_reference
from kernels.tuning import INPUTS


def prepare_w8(x: Tensor, weight: RowWeight, bias: Tensor | None = None) -> tuple[Tensor, list[Launch]]:
    """Where x [rows, in] times the weight's transpose plus bias [out] will be, and what has to run for it.

    [rows, out] in x's type, contiguous. Raises KernelInputError.
    """
    check_row_weight(weight, x.device)
    num_outputs, num_inputs = weight.stored.shape
    check_product(x, num_outputs, num_inputs, bias)
    out = x.new_empty((x.shape[0], num_outputs))
    return out, eight_bit_launches(x, None, weight, bias, out)


def eight_bit_launches(
    x: Tensor, row_scales: Tensor | None, weight: RowWeight, bias: Tensor | None, out: Tensor
) -> list[Launch]:
    """What fills `out` [rows, out]. With `row_scales` [rows] float32, x [rows, in] is of the weight's type."""
    arguments = {
        "row_scales": row_scales,
        "stored": weight.stored,
        "scales": weight.scales,
        "num_inputs": weight.stored.shape[1],
        "INPUTS": INPUTS,
    }
    kernels = (_few_rows_kernel, _many_rows_kernel)
    # Splits are put together in float32, which does not hold every int32.
    can_split = row_scales is None
    return product_launches(kernels, arguments, x, bias, out, tile_inputs=INPUTS, can_split=can_split)


w8_linear = launched(prepare_w8)


@jit()
def _add_product(weight: tl.tensor, given: tl.tensor, total: tl.tensor, INPUTS: tl.constexpr) -> tl.tensor:
    """`total` plus the product of [..., outputs, INPUTS] and [..., INPUTS, rows]."""
    if given.dtype == tl.int8:
        return tl.dot(weight, given, total, out_dtype=tl.int32)
    elif given.dtype == weight.dtype:
        # Tensor cores keep fewer digits of float8 sums than float32 has, which therefore takes over here.
        return tl.dot(weight, given, total, max_num_imprecise_acc=INPUTS)
    elif given.dtype == tl.bfloat16 and weight.dtype != tl.int8:
        # The machine knows no way from float8 to bfloat16; this one is exact, and quicker than what the compiler finds.
        return tl.dot(weight.to(tl.float16).to(tl.float32).to(tl.bfloat16), given, total)
    else:
        return tl.dot(weight.to(given.dtype), given, total, input_precision="ieee")


@jit()
def _scaled(
    total: tl.tensor, row_scales: tl.tensor, scales: tl.tensor, outputs: tl.tensor, rows: tl.tensor, num_rows: int
) -> tl.tensor:
    """The sums [outputs, rows] in float32, times both scales; `outputs` are all there."""
    result = total.to(tl.float32) * tl.load(scales + outputs)[:, None]
    if row_scales is not None:
        result *= tl.load(row_scales + rows, mask=rows < num_rows, other=0.0)[None, :]
    return result


@jit(varying=("num_rows",))
def _few_rows_kernel(
    x: tl.tensor,
    row_scales: tl.tensor,
    stored: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    num_rows: int,
    num_inputs: int,
    num_outputs: int,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    SLICES: tl.constexpr,
) -> None:
    """Program (tile of outputs): all rows, SLICES tiles of inputs at once with a sum each."""
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.arange(0, ROWS)
    kept = tl.minimum(outputs, num_outputs - 1)
    stored += (kept.to(tl.int64) * num_inputs)[None, :, None]
    x += (rows.to(tl.int64) * x_stride)[None, None, :]
    total = tl.zeros([SLICES, OUTPUTS, ROWS], tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32)
    for first in tl.range(0, num_inputs, SLICES * INPUTS):
        at = first + tl.arange(0, SLICES)[:, None] * INPUTS + tl.arange(0, INPUTS)[None, :]
        is_input = at < num_inputs
        weight = tl.load(stored + at[:, None, :], mask=is_input[:, None, :], other=0.0)
        mask = is_input[:, :, None] & (rows < num_rows)[None, None, :]
        given = tl.load(x + at[:, :, None], mask=mask, other=0.0)
        total = _add_product(weight, given, total, INPUTS)
    result = _scaled(tl.sum(total, 0), row_scales, scales, kept, rows, num_rows)
    store_product(result, bias, out, outputs, rows, num_outputs, num_rows)


@jit(varying=("num_rows", "tiles_of_split"))
def _many_rows_kernel(
    x: tl.tensor,
    row_scales: tl.tensor,
    stored: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    num_rows: int,
    num_inputs: int,
    num_outputs: int,
    tiles_of_split: int,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
) -> None:
    """Program (tile of outputs and rows, split): tile by tile of inputs."""
    first_output, first_row = place_of_tile(num_outputs, num_rows, OUTPUTS, ROWS)
    outputs = first_output + tl.arange(0, OUTPUTS)
    rows = first_row + tl.arange(0, ROWS)
    first_tile = tl.program_id(1) * tiles_of_split
    out += tl.program_id(1).to(tl.int64) * num_rows * num_outputs
    kept = tl.minimum(outputs, num_outputs - 1)
    stored += (kept.to(tl.int64) * num_inputs)[:, None]
    x += (tl.minimum(rows, num_rows - 1).to(tl.int64) * x_stride)[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32)
    end = tl.minimum((first_tile + tiles_of_split) * INPUTS, num_inputs)
    for first in tl.range(first_tile * INPUTS, end, INPUTS):
        at = first + tl.arange(0, INPUTS)
        weight = tl.load(stored + at[None, :], mask=(at < num_inputs)[None, :], other=0.0)
        given = tl.load(x + at[:, None], mask=(at < num_inputs)[:, None], other=0.0)
        total = _add_product(weight, given, total, INPUTS)
    result = _scaled(total, row_scales, scales, kept, rows, num_rows)
    store_product(result, bias, out, outputs, rows, num_outputs, num_rows)


OP = Op(
    name="w8",
    launch=w8_linear,
    prepare=prepare_w8,
    reference=w8_linear_reference,
    cases=w8_cases,
    cost=product_cost,
)
