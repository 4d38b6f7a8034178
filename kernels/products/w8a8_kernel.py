"""Matrix products of int8 or float8 weights with rows rounded to the same type: two launches, rounding and product.

int8 sums are exact, so a row's result is the same in any batch. Torch twin: `w8.py`.
"""

from __future__ import annotations

from torch import Tensor

from kernels.checks import check
from kernels.jit import Launch, launched
from kernels.operation import Op
from kernels.products.cases import product_cost, w8a8_cases
from kernels.products.checks import check_product, check_row_weight
from kernels.products.w8 import RowWeight, w8a8_linear_reference
from kernels.products.w8_kernel import eight_bit_launches
from kernels.rows.quantize_rows_kernel import prepare_quantize_rows

MAX_INPUTS = 2**31 // 127**2
"""Products of int8 that an int32 holds the sum of."""


def prepare_w8a8(x: Tensor, weight: RowWeight, bias: Tensor | None = None) -> tuple[Tensor, list[Launch]]:
    """Where the rounded x [rows, in] times the weight's transpose plus bias [out] will be, and what has to run for it.

    [rows, out] in x's type, contiguous. Raises KernelInputError.
    """
    check_row_weight(weight, x.device)
    num_outputs, num_inputs = weight.stored.shape
    check_product(x, num_outputs, num_inputs, bias)
    check(num_inputs <= MAX_INPUTS, "weight.stored", f"of at most {MAX_INPUTS} inputs", num_inputs)
    out = x.new_empty((x.shape[0], num_outputs))
    (stored, scales), launches = prepare_quantize_rows(x, weight.stored.dtype)
    return out, launches + eight_bit_launches(stored, scales, weight, bias, out)


w8a8_linear = launched(prepare_w8a8)


OP = Op(
    name="w8a8",
    launch=w8a8_linear,
    prepare=prepare_w8a8,
    reference=w8a8_linear_reference,
    cases=w8a8_cases,
    cost=product_cost,
)
