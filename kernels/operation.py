"""What an operation with a kernel says of itself, so that tests, the compile gate and benchmarks are one driver each.

A kernel's file has it as `OP`; `dispatch.py` knows where they all stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.jit import Launch

_Shape = TypeVar("_Shape")

Arguments: TypeAlias = dict[str, Any]
"""What an operation is called with, by name."""

Result: TypeAlias = Tensor | tuple[Tensor, ...]
"""What an operation makes: what it returns, and whatever it writes in place as further tensors."""


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


def cases_of(
    build: Callable[[_Shape, torch.device], Arguments], small: Mapping[str, _Shape], real: Mapping[str, _Shape]
) -> list[Case]:
    """A case of each shape by its name: small ones, and such as real models have."""
    return [
        *(Case(name, partial(build, shape)) for name, shape in small.items()),
        *(Case(name, partial(build, shape), is_real=True) for name, shape in real.items()),
    ]
