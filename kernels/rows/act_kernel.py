"""The gated activation of a feed-forward block, act(gate) * up.

Torch twin: `act.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

from torch import Tensor

from kernels.checks import check
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.rows.act import gated_activation_reference
from kernels.rows.cases import act_cases, act_cost
from kernels.rows.checks import check_rows
from kernels.rows.row_kernel import block_of, row_stride
from kernels.tuning import ACT_BLOCK, row_config

KINDS = ("silu", "gelu", "gelu_tanh")


def prepare_gated_activation(gate_up: Tensor, kind: str) -> tuple[Tensor, list[Launch]]:
    """Where the result of `gated_activation` will be, and what has to run for it. Raises KernelInputError."""
    check_rows("gate_up", gate_up)
    num_tokens, doubled = gate_up.shape
    check(doubled % 2 == 0, "gate_up", "of rows of an even number", doubled)
    check(kind in KINDS, "kind", " or ".join(KINDS), repr(kind))
    width = doubled // 2
    out = gate_up.new_empty((num_tokens, width))
    if not num_tokens:
        return out, []
    block = min(block_of(width), ACT_BLOCK)
    arguments = {
        "gate_up": gate_up,
        "out": out,
        "stride": row_stride(gate_up),
        "KIND": kind,
        "WIDTH": width,
        "BLOCK": block,
    }
    config = row_config(block, numbers_per_thread=8)
    return out, [Launch(_gated_activation_kernel, (num_tokens, -(-width // block)), arguments, config)]


gated_activation = launched(prepare_gated_activation)
"""[tokens, 2 * width], gate first -> act(gate) * up, [tokens, width] in the same type, contiguous.

`kind`: "silu", "gelu" (exact) or "gelu_tanh". Raises KernelInputError.
"""


@jit()
def _gated_activation_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
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
    tl.store(out + row * WIDTH + places, (gate * share * up).to(out.dtype.element_ty), mask=is_place)


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
    launch=gated_activation,
    prepare=prepare_gated_activation,
    reference=gated_activation_reference,
    cases=act_cases,
    cost=act_cost,
)
