"""The gated activation of a feed-forward block, act(gate) * up, on request with rows rounded to eight bits.

Torch twin: `act.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import check
from kernels.jit import Launch, jit, launched, run, tl
from kernels.products.w8 import quantize_rows
from kernels.registry import Op, Result
from kernels.rows.act import gated_activation_reference
from kernels.rows.cases import act_cases, act_cost
from kernels.rows.row_kernel import MAX_ROW, block_of, check_rows, empty_rows, row_stride, store_row
from kernels.tuning import ACT_BLOCK, row_config

KINDS = ("silu", "gelu", "gelu_tanh")


def prepare_gated(gate_up: Tensor, kind: str) -> tuple[Tensor, list[Launch]]:
    """Where the result of `gated_activation` will be, and what has to run for it. Raises KernelInputError."""
    (out,), launches = prepare_gated_activation(gate_up, kind)
    return out, launches


gated_activation = launched(prepare_gated)
"""[tokens, 2 * width], gate first -> act(gate) * up, [tokens, width] in the same type, contiguous.

`kind`: "silu", "gelu" (exact) or "gelu_tanh". Raises KernelInputError.
"""


def gated_activation_quantized(gate_up: Tensor, kind: str, *, quantized: torch.dtype) -> tuple[Tensor, Tensor]:
    """(rows as int8 or float8_e4m3fn, their scales [tokens] float32).

    Rounded as `kernels.products.w8.quantize_rows` does it. Raises KernelInputError.
    """
    (stored, scales), launches = prepare_gated_activation(gate_up, kind, quantized=quantized)
    run(launches)
    return stored, scales


def gated_activation_rows_reference(gate_up: Tensor, kind: str, *, quantized: torch.dtype | None = None) -> Result:
    """Either of them, of torch's own operations."""
    out = gated_activation_reference(gate_up, kind)
    if quantized is None:
        return out
    rows = quantize_rows(out, quantized)
    return rows.stored, rows.scales


def prepare_gated_activation(
    gate_up: Tensor, kind: str, *, quantized: torch.dtype | None = None
) -> tuple[tuple[Tensor, ...], list[Launch]]:
    """Where the rows will be, and what has to run for them. Raises KernelInputError."""
    check_rows("gate_up", gate_up)
    num_tokens, doubled = gate_up.shape
    check(doubled % 2 == 0, "gate_up", "of rows of an even number", doubled)
    check(kind in KINDS, "kind", " or ".join(KINDS), repr(kind))
    width = doubled // 2
    out, scales = empty_rows(gate_up, width, quantized)
    result = (out,) if scales is None else (out, scales)
    if scales is not None:
        check_rows("gate_up", gate_up, max_width=2 * MAX_ROW)
    if not num_tokens:
        return result, []
    # Only a row's scale needs the whole of it in one program.
    block = block_of(width) if scales is not None else min(block_of(width), ACT_BLOCK)
    arguments = {
        "gate_up": gate_up,
        "out": out,
        "scales": scales,
        "stride": row_stride(gate_up),
        "KIND": kind,
        "WIDTH": width,
        "BLOCK": block,
    }
    config = row_config(block, numbers_per_thread=16 if scales is not None else 8)
    return result, [Launch(_gated_activation_kernel, (num_tokens, -(-width // block)), arguments, config)]


@jit()
def _gated_activation_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    stride: int,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (row, block of it)."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_place = places < WIDTH
    gate_up += row * stride
    gate = tl.load(gate_up + places, mask=is_place, other=0.0).to(tl.float32)
    up = tl.load(gate_up + WIDTH + places, mask=is_place, other=0.0).to(tl.float32)
    share = gate_share(gate, KIND)
    if scales is not None:
        scales += row
    store_row(gate * share * up, out + row * WIDTH, scales, places, is_place)


@jit()
def gate_share(gate: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """act(gate) / gate, float32."""
    if KIND == "silu":
        share = tl.sigmoid(gate)
    elif KIND == "gelu":
        share = 0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)
    else:
        # (1 + tanh(x)) / 2 is sigmoid(2x).
        share = tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return share


OP = Op(
    name="act",
    launch=launched(prepare_gated_activation),
    prepare=prepare_gated_activation,
    reference=gated_activation_rows_reference,
    cases=act_cases,
    cost=act_cost,
)
