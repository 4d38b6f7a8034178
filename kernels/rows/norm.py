"""Residual add and RMSNorm in one pass (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(normed, x + residual), both shaped and typed as `x` [tokens, width]; neither input is written to.

    `weight`: [width]; rows are divided by their root mean square and scaled by `offset + weight`. Without a residual
    the second result is `x` itself.
    """
    total = x if residual is None else x + residual
    if offset:
        # 1 + weight loses most of a small weight's bits in a half type.
        scale = weight.float() + offset
        return functional.rms_norm(total.float(), weight.shape, scale, eps).to(x.dtype), total
    return functional.rms_norm(total, weight.shape, weight, eps), total
