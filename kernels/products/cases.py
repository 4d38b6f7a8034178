"""What the kernels of matrix products are tried with: random weights and rows, as small and as large as needed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.operation import Arguments, Case, Cost, cases_of
from kernels.products.w4a16 import GroupWeight, tiled
from kernels.products.w8 import RowWeight
from kernels.rows.cases import random_rows, seeded

_GAP = 3
_MOST_FP8 = torch.finfo(torch.float8_e4m3fn).max


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times a weight of `num_outputs` and `num_inputs`.

    `kind`: "symmetric", "zero-point" or "nf4" with scales for `group_size` inputs, "int8" or "fp8" with one a row.
    `is_gapped`: rows of a wider tensor.
    """

    num_rows: int
    num_outputs: int
    num_inputs: int
    kind: str = "symmetric"
    group_size: int = 128
    dtype: torch.dtype = torch.bfloat16
    has_bias: bool = False
    is_gapped: bool = False


def _build(shape: Product, device: torch.device) -> Arguments:
    generator = seeded(device)
    gap = _GAP if shape.is_gapped else 0
    x = random_rows(shape.num_rows, shape.num_inputs, shape.dtype, generator, device, gap=gap)
    bias = random_rows(1, shape.num_outputs, shape.dtype, generator, device)[0] if shape.has_bias else None
    make = _row_weight if shape.kind in ("int8", "fp8") else _tiled_weight
    return {"x": x, "weight": make(shape, generator, device), "bias": bias}


def _tiled_weight(shape: Product, generator: torch.Generator | None, device: torch.device) -> object:
    size, groups = (shape.num_outputs, shape.num_inputs // 2), (shape.num_outputs, shape.num_inputs // shape.group_size)
    packed = torch.randint(0, 256, size, generator=generator, device=device, dtype=torch.uint8)
    # Of either sign, and far apart.
    scales = (torch.randn(groups, generator=generator, device=device) * 0.02).half()
    zeros = None
    if shape.kind == "zero-point":
        zeros = torch.randint(0, 16, groups, generator=generator, device=device, dtype=torch.uint8)
    return tiled(GroupWeight(packed, scales, zeros, is_nf4=shape.kind == "nf4"), shape.dtype)


def _row_weight(shape: Product, generator: torch.Generator | None, device: torch.device) -> RowWeight:
    size = (shape.num_outputs, shape.num_inputs)
    if shape.kind == "int8":
        stored = torch.randint(-127, 128, size, generator=generator, device=device).to(torch.int8)
    else:
        # What float8 cannot hold becomes NaN: one number in a hundred thousand.
        numbers = (torch.randn(size, generator=generator, device=device) * 100).clamp_(-_MOST_FP8, _MOST_FP8)
        stored = numbers.to(torch.float8_e4m3fn)
    return RowWeight(stored, torch.rand(shape.num_outputs, generator=generator, device=device) * 0.01 + 1e-4)


def product_cost(arguments: Arguments) -> Cost:
    """Weight, rows and bias read once, the product written once."""
    x, weight, bias = arguments["x"], arguments["weight"], arguments["bias"]
    num_outputs = (weight.stored if isinstance(weight, RowWeight) else weight.words).shape[0]
    out_bytes = x.shape[0] * num_outputs * x.element_size()
    num_bytes = weight.num_bytes + _bytes_of(x) + out_bytes + (0 if bias is None else bias.nbytes)
    return Cost(num_bytes, 2 * x.numel() * num_outputs)


def _bytes_of(x: Tensor) -> int:
    return x.numel() * x.element_size()


_FP32, _FP16 = torch.float32, torch.float16
_SMALL_W4 = {
    "one-row": Product(1, 48, 512),
    "no-rows": Product(0, 16, 128),
    "three-rows-zero-point": Product(3, 32, 256, "zero-point", 64, has_bias=True, is_gapped=True),
    "eight-rows-one-group": Product(8, 16, 64, "zero-point", 64, _FP16),
    "nine-rows-odd-outputs": Product(9, 37, 352, "zero-point", 32, has_bias=True, is_gapped=True),
    "sixteen-rows": Product(16, 16, 640, dtype=_FP16),
    "float32": Product(2, 20, 1152, "zero-point", 64, _FP32, has_bias=True),
    "nf4": Product(5, 32, 256, "nf4", 64),
    "nf4-fp16": Product(1, 16, 192, "nf4", 32, _FP16, is_gapped=True),
    "wide-groups": Product(4, 16, 512, "zero-point", 256),
    "seventeen-rows": Product(17, 64, 256, has_bias=True),
    "thirty-three-rows-odd": Product(33, 70, 224, "zero-point", 32, _FP16, has_bias=True, is_gapped=True),
    "many-rows-zero-point": Product(140, 80, 192, "zero-point", 64, is_gapped=True),
    "many-rows-float32": Product(40, 40, 384, "zero-point", 128, _FP32, has_bias=True),
    "many-rows-nf4": Product(20, 64, 256, "nf4", 64),
    "split": Product(20, 70, 2400, "zero-point", 32, has_bias=True),
}
_SMALL_W8 = {
    "int8-one-row": Product(1, 48, 512, "int8"),
    "int8-no-rows": Product(0, 16, 128, "int8"),
    "int8-three-rows-odd": Product(3, 19, 333, "int8", has_bias=True, is_gapped=True),
    "int8-eight-rows": Product(8, 32, 1040, "int8", dtype=_FP16),
    "int8-nine-rows": Product(9, 32, 64, "int8", dtype=_FP32, has_bias=True),
    "int8-thirty-three-rows": Product(33, 70, 200, "int8", has_bias=True, is_gapped=True),
    "int8-many-rows": Product(140, 80, 130, "int8", dtype=_FP16),
    "fp8-one-row": Product(1, 48, 600, "fp8", has_bias=True),
    "fp8-five-rows-odd": Product(5, 19, 77, "fp8", dtype=_FP32, is_gapped=True),
    "fp8-sixteen-rows": Product(16, 16, 256, "fp8", dtype=_FP16),
    "fp8-thirty-three-rows": Product(33, 64, 200, "fp8", is_gapped=True),
    "fp8-many-rows-float32": Product(40, 40, 100, "fp8", dtype=_FP32, has_bias=True),
    "fp8-split": Product(20, 70, 2085, "fp8", has_bias=True),
    "int8-many-outputs": Product(1, 8210, 40, "int8"),
}
_SHAPES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (2560, 9728))
"""Outputs and inputs of Llama-3.1-8B's layers, and one of Qwen3-4B's."""
_REAL_ROWS = (1, 8, 16, 32, 64, 256, 2048)


def _real(kind: str, *, group_size: int = 128) -> dict[str, Product]:
    """A kind at every size, and what else it may be compiled for at one."""
    return {
        f"{kind}-{outputs}x{inputs}-{rows}": Product(rows, outputs, inputs, kind, group_size)
        for outputs, inputs in _SHAPES
        for rows in _REAL_ROWS
    }


_OTHERS = [
    *(Product(rows, 28672, 4096, "zero-point", 64, has_bias=True) for rows in (1, 64, 2048)),
    *(Product(rows, 28672, 4096, "zero-point", dtype=_FP16) for rows in (1, 2048)),
    *(Product(rows, 28672, 4096, "symmetric", 32) for rows in (1, 2048)),
    *(Product(rows, 28672, 4096, "nf4", 64) for rows in (1, 64, 2048)),
]
_REAL_W4 = _real("symmetric") | {
    f"{shape.kind}-{shape.group_size}-{'fp16' if shape.dtype == _FP16 else 'bf16'}-{shape.num_rows}": shape
    for shape in _OTHERS
}
_REAL_W8 = _real("int8") | _real("fp8")


def w4a16_cases() -> list[Case]:
    """Groups of every size and kind."""
    return cases_of(_build, _SMALL_W4, _REAL_W4)


def w8_cases() -> list[Case]:
    """int8 and float8 weights."""
    return cases_of(_build, _SMALL_W8, _REAL_W8)


def w8a8_cases() -> list[Case]:
    """The same, for rows that are rounded too. A warp group keeps fewer digits of float8 sums than float32 has."""
    cases = cases_of(_build, _SMALL_W8, _REAL_W8)
    return [replace(case, rounding=_FP16) if case.name == "fp8-many-rows-float32" else case for case in cases]
