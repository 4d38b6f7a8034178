"""What the kernels of matrix products with quantized weights have in common: checks, tiles, and how a product is kept.

A tile is [outputs, rows]: weights are the left operand, so that they are unpacked in registers and go to the tensor
cores from there, and rows of activations come from shared memory. A row's sums are made in the same order however many
rows there are, but for two borders: up to FEW_ROWS rows they are cut into slices of inputs within a program, up to
SPLIT_ROWS into splits of programs of their own; either are added up in order.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.jit import Kernel, Launch, jit, tl
from kernels.rows.row_kernel import row_stride
from kernels.tuning import FEW_ROWS, MERGE_OUTPUTS, MERGE_SPLITS, count_input_splits, few_rows_tile, many_rows_tile

_NEIGHBOURS = tl.constexpr(8)
"""Tiles of outputs that are worked on at once, for all rows, before the next."""


def product_launches(
    kernels: tuple[Kernel, Kernel],
    arguments: Mapping[str, object],
    x: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    tile_inputs: int,
    is_narrow: bool = False,
    can_split: bool = True,
) -> list[Launch]:
    """What fills `out` [rows, outputs]: one of the `kernels`, for few rows and for many, with what else it takes.

    `tile_inputs` of a row are multiplied at once. `is_narrow`: as `many_rows_tile`. `can_split`: sums are float32.
    """
    (num_rows, num_inputs), num_outputs = x.shape, out.shape[1]
    if not num_rows:
        return []
    few, many = kernels
    common = {**arguments, "x": x, "x_stride": row_stride(x), "num_rows": num_rows, "num_outputs": num_outputs}
    if num_rows <= FEW_ROWS:
        tile = few_rows_tile(num_rows, num_outputs, x.dtype)
        own = {"bias": bias, "out": out, "OUTPUTS": tile.outputs, "ROWS": tile.rows, "SLICES": tile.config.num_warps}
        return [Launch(few, (tile.count(num_rows, num_outputs),), common | own, tile.config)]
    tile = many_rows_tile(num_rows, num_outputs, x.dtype, is_narrow=is_narrow)
    num_splits = count_input_splits(tile, num_rows, num_outputs, num_inputs) if can_split else 1
    common |= {"OUTPUTS": tile.outputs, "ROWS": tile.rows}
    common["tiles_of_split"] = -(-num_inputs // (tile_inputs * num_splits))
    grid = (tile.count(num_rows, num_outputs), num_splits)
    if num_splits == 1:
        return [Launch(many, grid, common | {"bias": bias, "out": out}, tile.config)]
    splits = out.new_empty((num_splits, num_rows, num_outputs), dtype=torch.float32)
    merging = {
        "splits": splits,
        "bias": bias,
        "out": out,
        "num_splits": num_splits,
        "num_outputs": num_outputs,
        "OUTPUTS": MERGE_OUTPUTS,
    }
    return [
        Launch(many, grid, common | {"bias": None, "out": splits}, tile.config),
        Launch(_merge_kernel, (num_rows, -(-num_outputs // MERGE_OUTPUTS)), merging, MERGE_SPLITS),
    ]


@jit(varying=("num_splits",))
def _merge_kernel(
    splits: tl.tensor, bias: tl.tensor, out: tl.tensor, num_splits: int, num_outputs: int, OUTPUTS: tl.constexpr
) -> None:
    """Program (row, block of outputs): its splits, one after the other, and the bias."""
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = outputs < num_outputs
    place = tl.program_id(0).to(tl.int64) * num_outputs
    splits += place
    total = tl.zeros([OUTPUTS], tl.float32)
    for _ in tl.range(0, num_splits):
        total += tl.load(splits + outputs, mask=is_output, other=0.0)
        splits += tl.num_programs(0).to(tl.int64) * num_outputs
    if bias is not None:
        total += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out + place + outputs, total.to(out.dtype.element_ty), mask=is_output)


@jit()
def place_of_tile(num_outputs: int, num_rows: int, OUTPUTS: tl.constexpr, ROWS: tl.constexpr) -> tl.tensor:
    """This program's first output and first row; neighbouring programs read the same weights and the same rows."""
    program = tl.program_id(0)
    output_tiles = tl.cdiv(num_outputs, OUTPUTS)
    row_tiles = tl.cdiv(num_rows, ROWS)
    output_tile, row_tile = tl.swizzle2d(
        program // row_tiles, program % row_tiles, output_tiles, row_tiles, _NEIGHBOURS
    )
    return output_tile * OUTPUTS, row_tile * ROWS


@jit()
def store_product(
    total: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    outputs: tl.tensor,
    rows: tl.tensor,
    num_outputs: int,
    num_rows: int,
) -> None:
    """`total` [outputs, rows] float32 and the bias [outputs] to `out` [rows, outputs]."""
    is_output = outputs < num_outputs
    if bias is not None:
        total += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    places = rows.to(tl.int64)[None, :] * num_outputs + outputs[:, None]
    mask = is_output[:, None] & (rows < num_rows)[None, :]
    tl.store(out + places, total.to(out.dtype.element_ty), mask=mask)
