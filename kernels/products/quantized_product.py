"""Products with quantized weights of every kind behind one function: the torch twins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.products.w4a16 import GroupWeight, w4a16_linear_reference
from kernels.products.w8 import RowWeight, w8_linear_reference, w8a8_linear_reference

BuiltProduct: TypeAlias = tuple[Callable[[Tensor], Tensor], int]
"""x [rows, in] -> x W^T + b [rows, out] in x's type, and the bytes that W is kept in."""


def quantized_product_reference(
    weight: RowWeight | GroupWeight, bias: Tensor | None, *, dtype: torch.dtype, round_input: bool = False
) -> BuiltProduct:
    """As `kernels.dispatch.QuantizedProduct`, of torch's own operations."""
    if isinstance(weight, GroupWeight):
        return partial(w4a16_linear_reference, weight=weight, bias=bias), weight.num_bytes
    linear = w8a8_linear_reference if round_input else w8_linear_reference
    return partial(linear, weight=weight, bias=bias), weight.num_bytes
