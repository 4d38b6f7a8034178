"""What the kernels of matrix products ask of their arguments. Nothing here waits for a device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import MODEL_DTYPES, QUANTIZED_DTYPES, check, check_range, check_tensor
from kernels.products.w8 import RowWeight
from kernels.rows.checks import check_rows

MAX_EXPERTS = 1024
"""Whose counts fit into one program's registers."""


def check_product(x: Tensor, num_outputs: int, num_inputs: int, bias: Tensor | None) -> None:
    """`x` [rows, in] in a model's type, rows without gaps; `bias` [out] of the same type.

    Raises KernelInputError.
    """
    check_rows("x", x)
    check(x.shape[1] == num_inputs, "x", f"of shape [any, {num_inputs}], the weight's inputs", list(x.shape))
    check(num_outputs > 0, "weight", "of one output or more", num_outputs)
    if bias is not None:
        check_tensor("bias", bias, (x.dtype,), (num_outputs,), device=x.device)


def check_row_weight(weight: RowWeight, device: torch.device) -> None:
    """Eight-bit numbers without gaps, and a scale for each row. Raises KernelInputError."""
    check_tensor("weight.stored", weight.stored, QUANTIZED_DTYPES, (None, None), device=device)
    check_tensor("weight.scales", weight.scales, (torch.float32,), weight.stored.shape[:1], device=device)


def check_experts(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor) -> None:
    """What the grouped products of experts ask. Values are looked at only where they lie on the host.

    Raises KernelInputError.
    """
    device = x.device
    check_tensor("x", x, MODEL_DTYPES, (None, None), device=device, packed=1)
    num_tokens, hidden = x.shape
    check_tensor("down", down, (x.dtype,), (None, hidden, None), device=device)
    num_experts, _, width = down.shape
    check(1 <= num_experts <= MAX_EXPERTS, "down", f"of 1 to {MAX_EXPERTS} experts", num_experts)
    check_tensor("gate_up", gate_up, (x.dtype,), (num_experts, 2 * width, hidden), device=device)
    check_tensor("chosen", chosen, (torch.int64,), (num_tokens, None), device=device)
    per_token = chosen.shape[1]
    check(1 <= per_token <= num_experts, "chosen", f"of 1 to {num_experts} experts a token", per_token)
    check_tensor("shares", shares, (torch.float32,), chosen.shape, device=device)
    check_range("chosen", chosen, 0, num_experts - 1)
