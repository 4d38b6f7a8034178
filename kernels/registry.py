"""Every operation that has a kernel, so that tests, the compile gate and benchmarks are one generic driver each.

A new kernel is one file with an `OP`, and a row in `MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.jit import Launch

Arguments: TypeAlias = dict[str, Any]
"""What an operation is called with, by name."""

Result: TypeAlias = Tensor | tuple[Tensor, ...]
"""What an operation makes: what it returns, and whatever it writes in place as further tensors."""

MODULES = {
    "paged_decode": "attention.decode_kernel",
    "paged_prefill": "attention.prefill_kernel",
    "cascade": "attention.cascade_kernel",
    "norm": "rows.norm_kernel",
    "act": "rows.act_kernel",
    "rope_store": "rows.rope_store_kernel",
    "w4a16": "products.w4a16_kernel",
    "w8": "products.w8_kernel",
    "quantize_rows": "rows.quantize_rows_kernel",
    "w8a8": "products.w8a8_kernel",
    "sample": "choice.sample_kernel",
    "probabilities": "choice.probabilities_kernel",
    "reject": "choice.reject_kernel",
    "moe": "products.moe_kernel",
}
"""Where the kernel of each operation stands; the module has it as `OP`."""


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments to try an operation with.

    `build` makes them on a device, always the same numbers; on "meta" only their shapes. `is_real`: as large as a real
    model's, to be compiled and timed; the others are small enough for Triton's interpreter. `rounding`: the coarsest
    type that the kernel rounds to on its way, where it is coarser than the result's.
    """

    name: str
    build: Callable[[torch.device], Arguments]
    is_real: bool = False
    rounding: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call cannot do without: bytes read and written once, and additions and multiplications."""

    num_bytes: int
    num_operations: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. Every tensor of its result is compared with the reference's, in order.

    launch     arguments -> result; the kernel
    prepare    arguments -> (result, launches): where the result will be and what has to run for it; takes "meta"
    reference  arguments -> result; the torch twin, exact enough to check against where floating tensors are float64
    complaint  arguments with floating tensors in float64, the kernel's result -> what is wrong with it, or None; where
               there is none, results are held to the bounds of `exactness.py`
    """

    name: str
    launch: Callable[..., Result]
    prepare: Callable[..., tuple[Result, list[Launch]]]
    reference: Callable[..., Result]
    cases: Callable[[], Sequence[Case]]
    cost: Callable[[Arguments], Cost]
    complaint: Callable[[Arguments, Result], str | None] | None = None


def tensors(result: Result) -> tuple[Tensor, ...]:
    """The tensors of a result."""
    return (result,) if isinstance(result, Tensor) else result


def op_names() -> list[str]:
    """The names of all of them. Does not import Triton."""
    return list(MODULES)


def load_ops() -> list[Op]:
    """All of them. Imports Triton."""
    return [cast("Op", import_module(f"kernels.{name}").OP) for name in MODULES.values()]
