"""Matrix products with weights of four bits a number: unpacked in registers, multiplied on tensor cores, scaled after.

A code less its zero point is a whole number, exact in any type: products are summed group by group and scaled in
float32. Few rows take one kernel, where the weights' bytes are what counts: a program runs through whole rows of them,
each of its warps through every SLICES-th tile. Many rows take the other, where a warp group multiplies.
Torch twin and layout: `w4a16.py`; the tiles: `tile_kernel.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import check, check_tensor
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.products.cases import product_cost, w4a16_cases
from kernels.products.checks import check_product
from kernels.products.tile_kernel import place_of_tile, product_launches, store_product
from kernels.products.w4a16 import CODE_BITS, QUARTER, TILE, TiledWeight, w4a16_linear_reference

_TILE = tl.constexpr(TILE)
_QUARTER = tl.constexpr(QUARTER)
_WORDS = tl.constexpr(TILE // 8)
_CODE_BITS = tl.constexpr(CODE_BITS)
_PAIR = tl.constexpr(0x000F000F)
"""The lowest code of either half of a word."""
_BOTH = tl.constexpr(0x00010001)
"""What copies a number into both halves."""
_RAISED = tl.constexpr(16)
"""Added to code - zero, so that it is no negative number while it is bits."""


def prepare_w4a16(x: Tensor, weight: TiledWeight, bias: Tensor | None = None) -> tuple[Tensor, list[Launch]]:
    """Where x [rows, in] times the weight's transpose plus bias [out] will be, and what has to run for it.

    [rows, out] in x's type, contiguous. Raises KernelInputError.
    """
    num_outputs = weight.words.shape[0]
    check_product(x, num_outputs, weight.num_inputs, bias)
    _check_weight(weight, x)
    out = x.new_empty((x.shape[0], num_outputs))
    arguments = {
        "words": weight.words,
        "groups": weight.groups,
        "table": None if weight.table is None else weight.table.view(torch.int32),
        "num_inputs": weight.num_inputs,
        "PARTS": TILE // weight.group_size,
    }
    kernels = (_few_rows_kernel, _many_rows_kernel)
    is_narrow = weight.group_size == QUARTER
    return out, product_launches(kernels, arguments, x, bias, out, tile_inputs=TILE, is_narrow=is_narrow)


def _check_weight(weight: TiledWeight, x: Tensor) -> None:
    device, num_outputs, num_tiles = x.device, weight.words.shape[0], -(-weight.num_inputs // TILE)
    sizes = (QUARTER, 2 * QUARTER, TILE)
    check(weight.group_size in sizes, "weight.group_size", f"one of {sizes}", weight.group_size)
    check_tensor("weight.words", weight.words, (torch.int32,), (None, num_tiles * TILE // 8), device=device)
    groups = (num_outputs, num_tiles * TILE // weight.group_size)
    check_tensor("weight.groups", weight.groups, (torch.int32,), groups, device=device)
    if weight.table is not None:
        check(x.dtype != torch.float32, "x", "bfloat16 or float16 with a weight in NF4", "float32")
        check_tensor("weight.table", weight.table, (x.dtype,), (256, 2), device=device)


w4a16_linear = launched(prepare_w4a16)


@jit()
def _quarter_of(words: tl.tensor, zeros: tl.tensor, table: tl.tensor, shift: int, dtype: tl.constexpr) -> tl.tensor:
    """Whole numbers, or NF4's, in pairs [..., 16, 2], of words [..., 16] whose zero points are [..., 1]."""
    codes = (words >> shift) & _PAIR
    if table is not None:
        return _halves(tl.load(table + ((codes | codes >> 12) & 0xFF)), dtype)
    raised = codes + (_RAISED - zeros) * _BOTH
    if dtype == tl.float32:
        return tl.join((raised & 0xFFFF).to(dtype), (raised >> 16).to(dtype)) - 16.0
    # In bits, 128 + n is 0x4300 + n in bfloat16, and 1024 + n is 0x6400 + n in float16.
    elif dtype == tl.bfloat16:
        return _halves(raised + 0x43004300, dtype) - tl.full([], 144.0, tl.float32).to(dtype)
    else:
        return _halves(raised + 0x64006400, dtype) - tl.full([], 1040.0, tl.float32).to(dtype)


@jit()
def _halves(pairs: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Words of two numbers, low half first, as [..., 2] of a type of 16 bits."""
    low = pairs.to(tl.int16).to(dtype, bitcast=True)
    return tl.join(low, (pairs >> 16).to(tl.int16).to(dtype, bitcast=True))


@jit(varying=("num_rows",))
def _few_rows_kernel(
    x: tl.tensor,
    words: tl.tensor,
    groups: tl.tensor,
    table: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    num_rows: int,
    num_inputs: int,
    num_outputs: int,
    PARTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
) -> None:
    """Program (tile of outputs): all rows, tile by tile of inputs, SLICES tiles at once with a sum each."""
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.arange(0, ROWS)
    num_tiles = tl.cdiv(num_inputs, _TILE)
    row = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    words += (row * (num_tiles * _WORDS))[None, :, None] + tl.arange(0, _WORDS)[None, None, :]
    groups += (row * (num_tiles * PARTS))[None, :]
    x += rows.to(tl.int64)[None, None, :] * x_stride
    total = tl.zeros([SLICES, OUTPUTS, ROWS], tl.float32)
    for first in tl.range(0, num_tiles, SLICES):
        tiles = first + tl.arange(0, SLICES)
        is_tile = tiles < num_tiles
        packed = tl.load(words + (tiles * _WORDS)[:, None, None], mask=is_tile[:, None, None], other=0)
        for part in tl.static_range(PARTS):
            group = tl.load(groups + (tiles * PARTS + part)[:, None], mask=is_tile[:, None], other=0)
            product = tl.zeros([SLICES, OUTPUTS, ROWS], tl.float32)
            for quarter in tl.static_range(part * (4 // PARTS), (part + 1) * (4 // PARTS)):
                at = (tiles * _TILE + quarter * _QUARTER)[:, None] + tl.arange(0, _QUARTER)[None, :]
                mask = (at < num_inputs)[:, :, None] & (rows < num_rows)[None, None, :]
                given = tl.load(x + at[:, :, None], mask=mask, other=0.0)
                numbers = _quarter_of(packed, (group & _CODE_BITS)[:, :, None], table, 4 * quarter, given.dtype)
                numbers = tl.reshape(numbers, [SLICES, OUTPUTS, _QUARTER])
                product = tl.dot(numbers, given, product, input_precision="ieee")
            total += product * (group & ~_CODE_BITS).to(tl.float32, bitcast=True)[:, :, None]
    store_product(tl.sum(total, 0), bias, out, outputs, rows, num_outputs, num_rows)


@jit(varying=("num_rows", "tiles_of_split"))
def _many_rows_kernel(
    x: tl.tensor,
    words: tl.tensor,
    groups: tl.tensor,
    table: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    num_rows: int,
    num_inputs: int,
    num_outputs: int,
    tiles_of_split: int,
    PARTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Program (tile of outputs and rows, split): tile by tile of inputs."""
    first_output, first_row = place_of_tile(num_outputs, num_rows, OUTPUTS, ROWS)
    outputs = first_output + tl.arange(0, OUTPUTS)
    rows = first_row + tl.arange(0, ROWS)
    first_tile = tl.program_id(1) * tiles_of_split
    out += tl.program_id(1).to(tl.int64) * num_rows * num_outputs
    num_tiles = tl.cdiv(num_inputs, _TILE)
    row = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    words += (row * (num_tiles * _WORDS))[:, None] + tl.arange(0, _WORDS)[None, :]
    groups += row * (num_tiles * PARTS)
    x += tl.minimum(rows, num_rows - 1).to(tl.int64)[None, :] * x_stride
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for tile in tl.range(first_tile, tl.minimum(first_tile + tiles_of_split, num_tiles)):
        packed = tl.load(words + tile * _WORDS)
        for part in tl.static_range(PARTS):
            group = tl.load(groups + tile * PARTS + part)
            product = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for quarter in tl.static_range(part * (4 // PARTS), (part + 1) * (4 // PARTS)):
                at = tile * _TILE + quarter * _QUARTER + tl.arange(0, _QUARTER)
                given = tl.load(x + at[:, None], mask=(at < num_inputs)[:, None], other=0.0)
                numbers = _quarter_of(packed, (group & _CODE_BITS)[:, None], table, 4 * quarter, given.dtype)
                numbers = tl.reshape(numbers, [OUTPUTS, _QUARTER])
                product = tl.dot(numbers, given, product, input_precision="ieee")
            total += product * (group & ~_CODE_BITS).to(tl.float32, bitcast=True)[:, None]
    store_product(total, bias, out, outputs, rows, num_outputs, num_rows)


OP = Op(
    name="w4a16",
    launch=w4a16_linear,
    prepare=prepare_w4a16,
    reference=w4a16_linear_reference,
    cases=w4a16_cases,
    cost=product_cost,
)
