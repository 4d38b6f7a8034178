"""Gated feed-forward blocks of which each token takes a few: sorted by expert, multiplied tile by tile, on the device.

The pairs of token and expert are counted and sorted, in their order, into tiles of one expert each, the last tile of an
expert filled up; grids are as large as the most tiles there can be, so that the host never looks. A token's parts are
written apart and added in its own order of experts: no atomics, the same sum every time. Torch twin: `moe.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.tile_kernel import padded
from kernels.checks import check
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.products.checks import check_experts
from kernels.products.moe import moe_reference
from kernels.products.moe_cases import moe_cases, moe_cost
from kernels.rows.act_kernel import KINDS, gate_share
from kernels.tuning import MOE_INPUTS, MOE_ROUTE, MOE_SUM, MOE_SUM_BLOCK, moe_tile

_PAIRS = tl.constexpr(1024)
"""Pairs that are counted and sorted at once."""
_NOBODY = tl.constexpr(-1)
"""Fills up an expert's last tile."""


def prepare_moe(
    x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor, kind: str
) -> tuple[Tensor, list[Launch]]:
    """Where the result of `moe` will be, and what has to run for it. Raises KernelInputError."""
    check_experts(x, gate_up, down, shares, chosen)
    check(kind in KINDS, "kind", " or ".join(KINDS), repr(kind))
    num_tokens, hidden = x.shape
    num_experts, _, width = down.shape
    per_token = chosen.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_pairs = num_tokens * per_token
    if not num_pairs:
        return out.zero_(), []
    tile = moe_tile(num_pairs, num_experts, x.dtype)
    most_tiles = num_pairs // tile.rows + min(num_experts, num_pairs)
    pairs = chosen.new_empty(most_tiles * tile.rows, dtype=torch.int32)
    routing: dict[str, object] = {
        "pairs": pairs,
        "tile_experts": chosen.new_empty(most_tiles, dtype=torch.int32),
        "num_tiles": chosen.new_empty(1, dtype=torch.int32),
        "ROWS": tile.rows,
    }
    counting: dict[str, object] = {"chosen": chosen, "num_pairs": num_pairs, "EXPERTS": padded(num_experts)}
    inner = x.new_empty(pairs.shape[0], width)
    parts = x.new_empty(num_pairs, hidden)
    shape: dict[str, object] = {
        "HIDDEN": hidden,
        "WIDTH": width,
        "PER_TOKEN": per_token,
        "OUTPUTS": tile.outputs,
        "INPUTS": MOE_INPUTS,
    }
    gating: dict[str, object] = {"x": x, "gate_up": gate_up, "inner": inner, "x_stride": x.stride(0), "KIND": kind}
    ending: dict[str, object] = {"inner": inner, "down": down, "shares": shares, "parts": parts}
    adding: dict[str, object] = {
        "parts": parts,
        "out": out,
        "HIDDEN": hidden,
        "PER_TOKEN": per_token,
        "BLOCK": MOE_SUM_BLOCK,
    }
    gate_grid = (most_tiles, -(-width // tile.outputs))
    down_grid = (most_tiles, -(-hidden // tile.outputs))
    return out, [
        Launch(_route_kernel, (num_experts,), {**routing, **counting}, MOE_ROUTE),
        Launch(_gate_kernel, gate_grid, {**routing, **shape, **gating}, tile.config),
        Launch(_down_kernel, down_grid, {**routing, **shape, **ending}, tile.config),
        Launch(_sum_kernel, (num_tokens, -(-hidden // MOE_SUM_BLOCK)), adding, MOE_SUM),
    ]


moe = launched(prepare_moe)
"""As `moe_reference`, with rows of `x` without gaps and all else contiguous. Raises KernelInputError."""


@jit(varying=("num_pairs",))
def _route_kernel(
    chosen: tl.tensor,
    pairs: tl.tensor,
    tile_experts: tl.tensor,
    num_tiles: tl.tensor,
    num_pairs: int,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Program (expert): its pairs in their order, in tiles of its own behind those of the experts before it."""
    expert = tl.program_id(0)
    numbers = tl.arange(0, _PAIRS)
    experts = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for first in tl.range(0, num_pairs, _PAIRS):
        is_pair = first + numbers < num_pairs
        of_pair = tl.load(chosen + first + numbers, mask=is_pair, other=0).to(tl.int32)
        counts += tl.histogram(of_pair, EXPERTS, mask=is_pair)
    tiles = (counts + ROWS - 1) // ROWS
    first_tile = tl.sum(tl.where(experts < expert, tiles, 0), 0)
    end_tile = first_tile + tl.sum(tl.where(experts == expert, tiles, 0), 0)
    for tile in tl.range(first_tile, end_tile):
        tl.store(tile_experts + tile, expert)
    if expert == tl.num_programs(0) - 1:
        tl.store(num_tiles, end_tile)
    place = first_tile * ROWS
    for first in tl.range(0, num_pairs, _PAIRS):
        is_pair = first + numbers < num_pairs
        of_pair = tl.load(chosen + first + numbers, mask=is_pair, other=0).to(tl.int32)
        is_own = (is_pair & (of_pair == expert)).to(tl.int32)
        tl.store(pairs + place + tl.cumsum(is_own, 0) - 1, first + numbers, mask=is_own != 0)
        place += tl.sum(is_own, 0)
    rest = place + tl.arange(0, ROWS)
    tl.store(pairs + rest, tl.full([ROWS], _NOBODY, tl.int32), mask=rest < end_tile * ROWS)


@jit()
def _gate_kernel(
    x: tl.tensor,
    gate_up: tl.tensor,
    inner: tl.tensor,
    pairs: tl.tensor,
    tile_experts: tl.tensor,
    num_tiles: tl.tensor,
    x_stride: int,
    KIND: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
) -> None:
    """Program (tile, outputs): act(gate) * up of the tile's rows, by both halves of its expert's weight at once."""
    tile = tl.program_id(0)
    if tile >= tl.load(num_tiles):
        return
    expert = tl.load(tile_experts + tile).to(tl.int64)
    slots = tile * ROWS + tl.arange(0, ROWS)
    pair = tl.load(pairs + slots)
    is_row = pair >= 0
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = outputs < WIDTH
    rows = x + (tl.where(is_row, pair, 0) // PER_TOKEN).to(tl.int64)[:, None] * x_stride
    weights = gate_up + expert * 2 * WIDTH * HIDDEN + outputs[None, :] * HIDDEN
    gate = tl.zeros([ROWS, OUTPUTS], tl.float32)
    up = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in tl.range(0, HIDDEN, INPUTS):
        inputs = first + tl.arange(0, INPUTS)
        is_input = inputs < HIDDEN
        a = tl.load(rows + inputs[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        mask = is_input[:, None] & is_output[None, :]
        b = tl.load(weights + inputs[:, None], mask=mask, other=0.0)
        gate = tl.dot(a, b, gate, input_precision="ieee")
        b = tl.load(weights + WIDTH * HIDDEN + inputs[:, None], mask=mask, other=0.0)
        up = tl.dot(a, b, up, input_precision="ieee")
    value = gate * gate_share(gate, KIND) * up
    place = inner + slots.to(tl.int64)[:, None] * WIDTH + outputs[None, :]
    tl.store(place, value.to(inner.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@jit()
def _down_kernel(
    inner: tl.tensor,
    down: tl.tensor,
    shares: tl.tensor,
    parts: tl.tensor,
    pairs: tl.tensor,
    tile_experts: tl.tensor,
    num_tiles: tl.tensor,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
) -> None:
    """Program (tile, outputs): what each of the tile's pairs adds to its token, at the pair's own place."""
    tile = tl.program_id(0)
    if tile >= tl.load(num_tiles):
        return
    expert = tl.load(tile_experts + tile).to(tl.int64)
    slots = tile * ROWS + tl.arange(0, ROWS)
    pair = tl.load(pairs + slots)
    is_row = pair >= 0
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = outputs < HIDDEN
    rows = inner + slots.to(tl.int64)[:, None] * WIDTH
    weights = down + expert * HIDDEN * WIDTH + outputs[None, :] * WIDTH
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in tl.range(0, WIDTH, INPUTS):
        inputs = first + tl.arange(0, INPUTS)
        is_input = inputs < WIDTH
        a = tl.load(rows + inputs[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        b = tl.load(weights + inputs[:, None], mask=is_input[:, None] & is_output[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    total *= tl.load(shares + pair, mask=is_row, other=0.0)[:, None]
    place = parts + pair.to(tl.int64)[:, None] * HIDDEN + outputs[None, :]
    tl.store(place, total.to(parts.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@jit()
def _sum_kernel(
    parts: tl.tensor, out: tl.tensor, HIDDEN: tl.constexpr, PER_TOKEN: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Program (token, block): the sum of the token's parts, in its order of experts."""
    token = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_output = outputs < HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PER_TOKEN):
        place = parts + (token * PER_TOKEN + part) * HIDDEN + outputs
        total += tl.load(place, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out + token * HIDDEN + outputs, total.to(out.dtype.element_ty), mask=is_output)


OP = Op(
    name="moe",
    launch=moe,
    prepare=prepare_moe,
    reference=moe_reference,
    cases=moe_cases,
    cost=moe_cost,
)
