"""What the kernels that go row by row are tried with: random rows, as small and as large as needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.operation import Arguments, Case, Cost, cases_of

_SEED = 21
_GAP = 3


@dataclass(frozen=True, slots=True)
class RowsCase:
    """`width`: of a row that comes out. `is_gapped`: rows of a wider tensor. `kind` None: no activation.

    `stored`: the type that rows are rounded to, if they are.
    """

    num_rows: int
    width: int
    dtype: torch.dtype = torch.float32
    has_residual: bool = True
    offset: float = 0.0
    kind: str | None = None
    is_gapped: bool = False
    stored: torch.dtype | None = None


def random_rows(
    num_rows: int,
    width: int,
    dtype: torch.dtype,
    generator: torch.Generator | None,
    device: torch.device,
    *,
    gap: int = 0,
) -> Tensor:
    """Normal numbers [num_rows, width]; between one row and the next lie `gap` times NaN."""
    wide = torch.full((num_rows, width + gap), math.nan, dtype=dtype, device=device)
    wide[:, :width] = torch.randn(num_rows, width, generator=generator, device=device)
    return wide[:, :width]


def seeded(device: torch.device) -> torch.Generator | None:
    """The generator of a case's numbers; None on "meta", where there are none."""
    return None if device.type == "meta" else torch.Generator(device).manual_seed(_SEED)


def _build_norm(shape: RowsCase, device: torch.device) -> Arguments:
    generator, gap = seeded(device), _GAP if shape.is_gapped else 0
    x, residual = (
        random_rows(shape.num_rows, shape.width, shape.dtype, generator, device, gap=times * gap) for times in (1, 2)
    )
    weight = random_rows(1, shape.width, shape.dtype, generator, device)[0]
    return {
        "x": x,
        "weight": weight,
        "eps": 1e-5,
        "residual": residual if shape.has_residual else None,
        "offset": shape.offset,
    }


def _build_act(shape: RowsCase, device: torch.device) -> Arguments:
    gap = _GAP if shape.is_gapped else 0
    gate_up = random_rows(shape.num_rows, 2 * shape.width, shape.dtype, seeded(device), device, gap=gap)
    return {"gate_up": gate_up, "kind": shape.kind}


def _build_rounding(shape: RowsCase, device: torch.device) -> Arguments:
    gap = _GAP if shape.is_gapped else 0
    x = random_rows(shape.num_rows, shape.width, shape.dtype, seeded(device), device, gap=gap)
    return {"x": x, "dtype": shape.stored}


def norm_cost(arguments: Arguments) -> Cost:
    """Each row read and written once; with a residual twice."""
    x, weight, residual = (arguments[name] for name in ("x", "weight", "residual"))
    num_bytes = 2 * x.nbytes + weight.nbytes
    if residual is not None:
        num_bytes += 2 * residual.nbytes
    # Squares, their sum, two products, and the sum with the residual.
    return Cost(num_bytes, x.numel() * (4 if residual is None else 5))


def act_cost(arguments: Arguments) -> Cost:
    """Gate and up read once, their product written once."""
    gate_up = arguments["gate_up"]
    num_out = gate_up.numel() // 2
    return Cost(gate_up.nbytes + num_out * gate_up.element_size(), 2 * num_out)


def rounding_cost(arguments: Arguments) -> Cost:
    """Each row read and written once; a comparison, a division and a rounding for each number."""
    x, dtype = arguments["x"], arguments["dtype"]
    return Cost(x.nbytes + x.numel() * dtype.itemsize + 4 * x.shape[0], 3 * x.numel())


_BF16, _FP16, _INT8, _FP8 = torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn
_SMALL_NORM = {
    "one-number": RowsCase(2, 1),
    "odd-width": RowsCase(3, 257, is_gapped=True),
    "power-of-two": RowsCase(2, 64, dtype=_BF16),
    "no-residual": RowsCase(2, 1000, dtype=_BF16, has_residual=False, is_gapped=True),
    "offset": RowsCase(3, 20, offset=1.0),
    "offset-fp16": RowsCase(3, 100, dtype=_FP16, offset=1.0, is_gapped=True),
    "no-rows": RowsCase(0, 64),
}
_REAL_NORM = {
    "1x4096": RowsCase(1, 4096, dtype=_BF16),
    "64x4096": RowsCase(64, 4096, dtype=_BF16),
    "4096x4096": RowsCase(4096, 4096, dtype=_BF16),
    "4096x8192": RowsCase(4096, 8192, dtype=_BF16),
    "4096x2560": RowsCase(4096, 2560, dtype=_BF16),
    "4096x16384": RowsCase(4096, 16384, dtype=_BF16),
    "4096x4096-fp16": RowsCase(4096, 4096, dtype=_FP16),
    "4096x4096-first": RowsCase(4096, 4096, dtype=_BF16, has_residual=False),
    "4096x5376-offset": RowsCase(4096, 5376, dtype=_BF16, offset=1.0),
}
_SMALL_ACT = {
    "one-number": RowsCase(2, 1, kind="silu"),
    "odd-width": RowsCase(3, 257, kind="silu", is_gapped=True),
    "two-blocks": RowsCase(2, 1030, dtype=_BF16, kind="silu"),
    "gelu": RowsCase(3, 100, kind="gelu", is_gapped=True),
    "gelu-bf16": RowsCase(2, 64, dtype=_BF16, kind="gelu"),
    "gelu-tanh": RowsCase(3, 100, kind="gelu_tanh"),
    "gelu-tanh-fp16": RowsCase(2, 333, dtype=_FP16, kind="gelu_tanh", is_gapped=True),
    "no-rows": RowsCase(0, 64, kind="silu"),
}
_REAL_ACT = {
    "1x14336": RowsCase(1, 14336, dtype=_BF16, kind="silu"),
    "64x14336": RowsCase(64, 14336, dtype=_BF16, kind="silu"),
    "4096x14336": RowsCase(4096, 14336, dtype=_BF16, kind="silu"),
    "4096x9728": RowsCase(4096, 9728, dtype=_BF16, kind="silu"),
    "4096x14336-fp16": RowsCase(4096, 14336, dtype=_FP16, kind="silu"),
    "4096x14336-gelu": RowsCase(4096, 14336, dtype=_BF16, kind="gelu"),
    "4096x21504-gelu-tanh": RowsCase(4096, 21504, dtype=_BF16, kind="gelu_tanh"),
}


_SMALL_ROUNDING = {
    "int8-one-number": RowsCase(2, 1, dtype=_BF16, stored=_INT8),
    "int8-odd": RowsCase(5, 333, dtype=_BF16, stored=_INT8, is_gapped=True),
    "int8-float32": RowsCase(3, 1030, stored=_INT8),
    "int8-no-rows": RowsCase(0, 64, dtype=_BF16, stored=_INT8),
    "fp8-odd": RowsCase(4, 77, dtype=_BF16, stored=_FP8, is_gapped=True),
    "fp8-fp16": RowsCase(3, 512, dtype=_FP16, stored=_FP8),
    "int8-longest": RowsCase(2, 20000, dtype=_BF16, stored=_INT8, is_gapped=True),
}
_REAL_ROUNDING = {
    f"{kind}-{rows}x{width}": RowsCase(rows, width, dtype=_BF16, stored=stored)
    for kind, stored in (("int8", _INT8), ("fp8", _FP8))
    for rows in (1, 64, 4096)
    for width in (4096, 14336, 28672)
}


def norm_cases() -> list[Case]:
    """Hidden sizes from Qwen3-4B's to Llama-405B's."""
    return cases_of(_build_norm, _SMALL_NORM, _REAL_NORM)


def act_cases() -> list[Case]:
    """Feed-forward sizes of models of 4B to 27B."""
    return cases_of(_build_act, _SMALL_ACT, _REAL_ACT)


def rounding_cases() -> list[Case]:
    """Rows that are rounded to either type."""
    return cases_of(_build_rounding, _SMALL_ROUNDING, _REAL_ROUNDING)
