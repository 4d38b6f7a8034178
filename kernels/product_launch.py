"""Products with quantized weights of every kind on CUDA, each laid out once for the kernel that takes it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels.products import BuiltProduct
from kernels.w4a16 import GroupWeight, is_tileable, tiled
from kernels.w4a16_kernel import w4a16_linear
from kernels.w8 import RowWeight
from kernels.w8_kernel import w8_linear
from kernels.w8a8_kernel import w8a8_linear


def quantized_product(
    weight: RowWeight | GroupWeight, bias: Tensor | None, *, dtype: torch.dtype, round_input: bool = False
) -> BuiltProduct:
    """As `kernels.dispatch.QuantizedProduct`. A weight of four bits that no kernel takes is unpacked, once."""
    if isinstance(weight, RowWeight):
        linear = w8a8_linear if round_input else w8_linear
        return partial(linear, weight=weight, bias=bias), weight.num_bytes
    if is_tileable(weight, dtype):
        laid_out = tiled(weight, dtype)
        return partial(w4a16_linear, weight=laid_out, bias=bias), laid_out.num_bytes
    dense = weight.dequantized(dtype)
    return partial(functional.linear, weight=dense, bias=bias), dense.nbytes
