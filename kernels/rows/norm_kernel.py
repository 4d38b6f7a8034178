"""Residual add and RMSNorm in one pass over a row.

One program a row, which it holds in registers: what a row gets depends on itself alone. Torch twin: `norm.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

from torch import Tensor

from kernels.checks import MODEL_DTYPES, check_tensor
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op
from kernels.rows.cases import norm_cases, norm_cost
from kernels.rows.checks import check_rows
from kernels.rows.norm import rms_norm_reference
from kernels.rows.row_kernel import MAX_ROW, block_of, row_stride
from kernels.tuning import row_config


def prepare_rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, offset: float = 0.0
) -> tuple[tuple[Tensor, Tensor], list[Launch]]:
    """Where the results of `rms_norm` will be, and what has to run for them. Raises KernelInputError."""
    check_rows("x", x, max_width=MAX_ROW)
    num_tokens, width = x.shape
    check_tensor("weight", weight, MODEL_DTYPES, (width,), device=x.device)
    if residual is not None:
        check_rows("residual", residual, like=x)
    normed = x.new_empty(x.shape)
    total = x if residual is None else x.new_empty(x.shape)
    if not num_tokens:
        return (normed, total), []
    block = block_of(width)
    arguments = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "normed": normed,
        "total": total,
        "x_stride": row_stride(x),
        "residual_stride": 0 if residual is None else row_stride(residual),
        "eps": float(eps),
        "offset": float(offset),
        "WIDTH": width,
        "BLOCK": block,
    }
    return (normed, total), [Launch(_rms_norm_kernel, (num_tokens,), arguments, row_config(block))]


rms_norm = launched(prepare_rms_norm)
"""(normed, x + residual), contiguous and typed as `x` [tokens, width]; without a residual the second is x itself.

As `kernels.dispatch.RMSNorm`. The norm is that of the sum before it is rounded. Raises KernelInputError.
"""


@jit()
def _rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    total: tl.tensor,
    x_stride: int,
    residual_stride: int,
    eps: float,
    offset: float,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    is_place = places < WIDTH
    factors = tl.load(weight + places, mask=is_place, other=0.0).to(tl.float32) + offset
    numbers = tl.load(x + row * x_stride + places, mask=is_place, other=0.0).to(tl.float32)
    if residual is not None:
        numbers += tl.load(residual + row * residual_stride + places, mask=is_place, other=0.0).to(tl.float32)
        tl.store(total + row * WIDTH + places, numbers.to(total.dtype.element_ty), mask=is_place)
    mean_square = tl.sum(numbers * numbers, 0) / WIDTH
    numbers = numbers * tl.rsqrt(mean_square + eps) * factors
    tl.store(normed + row * WIDTH + places, numbers.to(normed.dtype.element_ty), mask=is_place)


OP = Op(
    name="norm",
    launch=rms_norm,
    prepare=prepare_rms_norm,
    reference=rms_norm_reference,
    cases=norm_cases,
    cost=norm_cost,
)
