"""Products with quantized weights in Triton's interpreter: what cases do not show. Run by `test_against_float64.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.checks import KernelInputError
from kernels.fallback import Fallbacks
from kernels.operation import Arguments
from kernels.products.launch import Products
from kernels.products.w4a16 import TiledWeight, quantize_int4, quantize_nf4, tiled, w4a16_linear_reference
from kernels.products.w4a16_kernel import prepare_w4a16, w4a16_linear
from kernels.products.w8 import quantize_w8, w8_linear_reference, w8a8_linear_reference
from kernels.products.w8_kernel import prepare_w8, w8_linear
from kernels.products.w8a8_kernel import prepare_w8a8, w8a8_linear
from kernels.rows.quantize_rows_kernel import prepare_quantize_rows
from tests.support.kernels.kernel_errors import assert_close
from tests.support.kernels.triton_interpreter import repair_interpreter

repair_interpreter()
INT8, FP8 = torch.int8, torch.float8_e4m3fn


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tiled_weight(dtype: torch.dtype = torch.bfloat16) -> TiledWeight:
    """[32, 256] with zero points, groups of 64."""
    return tiled(quantize_int4(numbers(32, 256, seed=1, dtype=torch.float32), 64, symmetric=False), dtype)


@pytest.mark.parametrize("counts", [(1, 8), (9, 16), (20, 32), (70, 128)], ids=["few", "sixteen", "many", "wide"])
@pytest.mark.parametrize("kind", ["w4a16", "w8", "w8a8"])
def test_product_row_is_the_same_beside_others(kind: str, counts: tuple[int, int]) -> None:
    """A row's bits do not depend on what the other rows of its tile are, or on whether there are any."""
    fewer, more = counts
    x = numbers(more, 2048)
    dense = numbers(32, 2048, seed=1)
    rows, groups = quantize_w8(dense, INT8), tiled(quantize_int4(dense, 64), torch.bfloat16)
    product: dict[str, Callable[[Tensor], Tensor]] = {
        "w4a16": lambda x: w4a16_linear(x, groups),
        "w8": lambda x: w8_linear(x, rows),
        "w8a8": lambda x: w8a8_linear(x, rows),
    }

    whole = product[kind](x)

    assert torch.equal(product[kind](x[:fewer]), whole[:fewer])


def test_w8a8_row_is_the_same_in_any_batch() -> None:
    """int8 sums are exact, so not even the kernel that makes them matters."""
    x, weight = numbers(70, 333), quantize_w8(numbers(19, 333, seed=1), INT8)
    whole = w8a8_linear(x, weight)

    for count in (1, 9, 17, 40):
        assert torch.equal(w8a8_linear(x[:count], weight), whole[:count])


@pytest.mark.parametrize("count", [3, 20], ids=["few", "many"])
def test_product_nan_stays_in_its_row(count: int) -> None:
    """A row of NaN spoils itself and no other."""
    x = numbers(count, 256)
    clean = w4a16_linear(x, tiled_weight())
    x[1] = math.nan

    out = w4a16_linear(x, tiled_weight())

    assert out[1].isnan().all()
    others = [row for row in range(count) if row != 1]
    assert torch.equal(out[others], clean[others])


def test_product_rows_beyond_two_to_the_31_are_found() -> None:
    """Addresses are computed in 64 bits: a row that begins 2^31 numbers after the first is read where it is."""
    torch.use_deterministic_algorithms(False)
    # Reserved and not touched, but for the rows that are written to.
    x = torch.empty(2**31 + 256, dtype=torch.float16).as_strided((3, 256), (2**30, 1))
    x.copy_(numbers(3, 256, dtype=torch.float16))
    weight = quantize_w8(numbers(16, 256, seed=1), INT8)

    assert torch.equal(w8_linear(x, weight), w8_linear(x.contiguous(), weight))
    assert torch.equal(w8a8_linear(x, weight), w8a8_linear(x.contiguous(), weight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "float32"])
@pytest.mark.parametrize("kind", ["int4", "nf4", "pairs", "int8", "fp8", "w8a8"])
def test_quantized_product_of_every_kind_equals_its_twin(kind: str, dtype: torch.dtype) -> None:
    """Whatever a weight is kept in, also where no kernel takes it: groups of two, and NF4 in float32."""
    x, bias = numbers(5, 96, dtype=dtype), numbers(20, seed=2, dtype=dtype)
    dense = numbers(20, 96, seed=1, dtype=torch.float32)
    x64, bias64 = x.double(), bias.double()
    if kind in ("int4", "nf4", "pairs"):
        groups = quantize_nf4(dense, 32) if kind == "nf4" else quantize_int4(dense, 2 if kind == "pairs" else 32)
        run, num_bytes = Products(Fallbacks())(groups, bias, dtype=dtype)
        exact = w4a16_linear_reference(x64, groups, bias64)
        # Scales take 32 bits instead of 16, and 96 inputs are filled up to 128.
        most = 20 * 96 * dtype.itemsize if kind == "pairs" else 2 * groups.num_bytes
        assert num_bytes <= (20 * 96 * dtype.itemsize if kind == "nf4" else most)
    else:
        rows = quantize_w8(dense, FP8 if kind == "fp8" else INT8)
        run, num_bytes = Products(Fallbacks())(rows, bias, dtype=dtype, round_input=kind == "w8a8")
        exact = (w8a8_linear_reference if kind == "w8a8" else w8_linear_reference)(x64, rows, bias64)
        assert num_bytes == rows.num_bytes

    assert_close(run(x), exact)


PLAIN: Arguments = {"x": numbers(3, 256), "weight": tiled_weight(), "bias": numbers(32)}
NF4 = tiled(quantize_nf4(numbers(32, 256, dtype=torch.float32), 64), torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "argument", "expected"),
    [
        ({"x": numbers(3, 256).double()}, "x", "bfloat16 or float16 or float32, not float64"),
        ({"x": numbers(3, 255)}, "x", r"\[any, 256\], the weight's inputs, not \[3, 255\]"),
        ({"x": numbers(3, 1, 256)}, "x", r"of shape \[any, any\]"),
        ({"x": numbers(256, 3).T}, "x", "without gaps"),
        ({"bias": numbers(31)}, "bias", r"of shape \[32\], not \[31\]"),
        ({"bias": numbers(32).float()}, "bias", "bfloat16, not float32"),
        ({"bias": numbers(32).to("meta")}, "bias", "on cpu, not meta"),
        ({"weight": replace(tiled_weight(), group_size=16)}, "weight.group_size", "one of"),
        ({"weight": replace(tiled_weight(), group_size=128)}, "weight.groups", r"\[32, 2\], not \[32, 4\]"),
        ({"weight": replace(tiled_weight(), words=tiled_weight().words.long())}, "weight.words", "int32, not int64"),
        ({"weight": replace(tiled_weight(), words=tiled_weight().words[:, :16])}, "weight.words", r"\[any, 32\]"),
        ({"weight": replace(NF4, table=NF4.words)}, "weight.table", "bfloat16, not int32"),
        ({"weight": NF4, "x": numbers(3, 256).float(), "bias": None}, "x", "with a weight in NF4, not float32"),
    ],
)
def test_w4a16_wrong_argument_is_named(change: Arguments, argument: str, expected: str) -> None:
    """The message names the argument, what it must be and what it is."""
    with pytest.raises(KernelInputError, match=expected) as caught:
        prepare_w4a16(**(PLAIN | change))

    assert caught.value.argument == argument


ROWS = quantize_w8(numbers(32, 256, seed=1), INT8)
WIDE = torch.empty(32, 140_000, dtype=INT8, device="meta")


@pytest.mark.parametrize("prepare", [prepare_w8, prepare_w8a8], ids=["w8", "w8a8"])
@pytest.mark.parametrize(
    ("change", "argument", "expected"),
    [
        ({"x": numbers(3, 255)}, "x", "the weight's inputs"),
        ({"weight": replace(ROWS, stored=ROWS.stored.short())}, "weight.stored", "float8_e4m3fn or int8, not int16"),
        ({"weight": replace(ROWS, stored=ROWS.stored.T.contiguous().T)}, "weight.stored", "without gaps"),
        ({"weight": replace(ROWS, scales=ROWS.scales.half())}, "weight.scales", "float32, not float16"),
        ({"weight": replace(ROWS, scales=ROWS.scales[1:])}, "weight.scales", r"\[32\], not \[31\]"),
    ],
)
def test_w8_wrong_argument_is_named(
    prepare: Callable[..., object], change: Arguments, argument: str, expected: str
) -> None:
    """The same for weights of eight bits, and for rows that are to be rounded."""
    with pytest.raises(KernelInputError, match=expected) as caught:
        prepare(**({"x": numbers(3, 256), "weight": ROWS, "bias": None} | change))

    assert caught.value.argument == argument


def test_w8a8_more_inputs_than_a_sum_holds_are_refused() -> None:
    """Beyond 2^31 / 127^2 products an int32 may overflow."""
    x = torch.empty(1, 140_000, dtype=torch.bfloat16, device="meta")
    weight = replace(ROWS, stored=WIDE, scales=torch.empty(32, device="meta"))

    with pytest.raises(KernelInputError, match="at most 133144 inputs, not 140000"):
        prepare_w8a8(x, weight)


def test_quantize_rows_wrong_type_is_named() -> None:
    """int8 and float8_e4m3fn are what products take."""
    with pytest.raises(KernelInputError, match="dtype must be int8 or float8_e4m3fn, not"):
        prepare_quantize_rows(numbers(2, 8), torch.int16)
