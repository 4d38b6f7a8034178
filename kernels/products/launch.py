"""Products with quantized weights of every kind on CUDA, each laid out once for the kernel that takes it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels.fallback import Fallbacks
from kernels.products.quantized_product import BuiltProduct
from kernels.products.w4a16 import GroupWeight, is_tileable, tiled, w4a16_linear_reference
from kernels.products.w4a16_kernel import prepare_w4a16
from kernels.products.w8 import RowWeight, w8_linear_reference, w8a8_linear_reference
from kernels.products.w8_kernel import prepare_w8
from kernels.products.w8a8_kernel import prepare_w8a8


class Products:
    """As `kernels.dispatch.QuantizedProduct`. `fallbacks` takes care of what cannot run here."""

    def __init__(self, fallbacks: Fallbacks) -> None:
        self._w8 = fallbacks.guarded("w8", prepare_w8, w8_linear_reference)
        self._w8a8 = fallbacks.guarded("w8a8", prepare_w8a8, w8a8_linear_reference)
        self._w4a16 = fallbacks.guarded("w4a16", prepare_w4a16, w4a16_linear_reference)

    def __call__(
        self, weight: RowWeight | GroupWeight, bias: Tensor | None, *, dtype: torch.dtype, round_input: bool = False
    ) -> BuiltProduct:
        """A weight of four bits that no kernel takes is unpacked, once."""
        if isinstance(weight, RowWeight):
            linear = self._w8a8 if round_input else self._w8
            return partial(linear, weight=weight, bias=bias), weight.num_bytes
        if is_tileable(weight, dtype):
            laid_out = tiled(weight, dtype)
            return partial(self._w4a16, weight=laid_out, bias=bias), laid_out.num_bytes
        dense = weight.dequantized(dtype)
        return partial(functional.linear, weight=dense, bias=bias), dense.nbytes
