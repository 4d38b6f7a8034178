"""Residual add and RMSNorm in one pass over a row, on request with the row rounded to eight bits on its way out.

One program a row, which it holds in registers: what a row gets depends on itself alone. Torch twin: `norm.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import MODEL_DTYPES, check_tensor
from kernels.jit import Launch, jit, launched, run, tl
from kernels.products.w8 import quantize_rows
from kernels.registry import Op, Result
from kernels.rows.cases import norm_cases, norm_cost
from kernels.rows.norm import rms_norm_reference
from kernels.rows.row_kernel import MAX_ROW, block_of, check_rows, empty_rows, row_stride, store_row
from kernels.tuning import row_config


def prepare_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, offset: float = 0.0
) -> tuple[tuple[Tensor, Tensor], list[Launch]]:
    """Where the results of `rms_norm` will be, and what has to run for them. Raises KernelInputError."""
    (normed, total), launches = prepare_rms_norm(x, weight, eps, residual=residual, offset=offset)
    return (normed, total), launches


rms_norm = launched(prepare_norm)
"""(normed, x + residual), contiguous and typed as `x` [tokens, width]; without a residual the second is x itself.

As `kernels.dispatch.RMSNorm`. The norm is that of the sum before it is rounded. Raises KernelInputError.
"""


def rms_norm_quantized(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    quantized: torch.dtype,
    residual: Tensor | None = None,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(normed as int8 or float8_e4m3fn, its scales [tokens] float32, x + residual).

    Rounded as `kernels.products.w8.quantize_rows` does it. Raises KernelInputError.
    """
    (stored, scales, total), launches = prepare_rms_norm(
        x, weight, eps, residual=residual, offset=offset, quantized=quantized
    )
    run(launches)
    return stored, scales, total


def rms_norm_rows_reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    offset: float = 0.0,
    quantized: torch.dtype | None = None,
) -> Result:
    """Either of them, of torch's own operations."""
    normed, total = rms_norm_reference(x, weight, eps, residual=residual, offset=offset)
    if quantized is None:
        return normed, total
    rows = quantize_rows(normed, quantized)
    return rows.stored, rows.scales, total


def prepare_rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    offset: float = 0.0,
    quantized: torch.dtype | None = None,
) -> tuple[tuple[Tensor, ...], list[Launch]]:
    """Where the rows will be, and what has to run for them. Raises KernelInputError."""
    check_rows("x", x, max_width=MAX_ROW)
    num_tokens, width = x.shape
    check_tensor("weight", weight, MODEL_DTYPES, (width,), device=x.device)
    if residual is not None:
        check_rows("residual", residual, like=x)
    normed, scales = empty_rows(x, width, quantized)
    total = x if residual is None else x.new_empty(x.shape)
    result = (normed, total) if scales is None else (normed, scales, total)
    if not num_tokens:
        return result, []
    block = block_of(width)
    arguments = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "normed": normed,
        "scales": scales,
        "total": total,
        "x_stride": row_stride(x),
        "residual_stride": 0 if residual is None else row_stride(residual),
        "eps": float(eps),
        "offset": float(offset),
        "WIDTH": width,
        "BLOCK": block,
    }
    return result, [Launch(_rms_norm_kernel, (num_tokens,), arguments, row_config(block))]


@jit()
def _rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    scales: tl.tensor,
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
    if scales is not None:
        scales += row
    store_row(numbers, normed + row * WIDTH, scales, places, is_place)


OP = Op(
    name="norm",
    launch=launched(prepare_rms_norm),
    prepare=prepare_rms_norm,
    reference=rms_norm_rows_reference,
    cases=norm_cases,
    cost=norm_cost,
)
