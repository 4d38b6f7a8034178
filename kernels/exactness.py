"""How far a kernel's result may be from the exact one: what tests and the benchmark hold every operation to."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import torch
from torch import Tensor

from kernels.operation import Arguments, Op, Result, tensors
from kernels.paging import PagedKV

BOUNDS = {
    torch.float32: (5e-6, 1e-6),
    torch.float16: (5e-3, 6e-4),
    torch.bfloat16: (4e-2, 4e-3),
    torch.int8: (5e-2, 2e-3),
    torch.float8_e4m3fn: (3e-1, 8e-3),
}
"""The largest error of an entry, in units of what is large there: the entry, its row or the whole, whichever has the
largest (root mean) square; and the root mean square of all errors in units of the whole result's.

Rounding is a share of the number that is rounded. In small results all numbers are alike; among millions some are ten
times as large as most, and the first rows of causal attention, which average few values, are larger than later ones.

A number just between two of int8 or float8 may be rounded to either, here and there. Other types have to be equal.
"""
_EXACT = (0.0, 0.0)
_QUANTIZED = (torch.int8, torch.float8_e4m3fn)


def for_twin(arguments: Arguments, *, exact: bool = False) -> Arguments:
    """The same arguments with pages packed, as torch twins want them.

    `exact`: floating numbers in float64, also within dataclasses; quantized ones are exact as they are.
    """
    return {name: _for_twin(value, exact) for name, value in arguments.items()}


def _for_twin(value: object, exact: bool) -> object:
    if isinstance(value, Tensor) and exact and value.is_floating_point() and value.dtype not in _QUANTIZED:
        return value.double()
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _for_twin(getattr(value, field.name), exact) for field in fields(value) if field.init}
        if isinstance(value, PagedKV):
            parts = {name: part.contiguous() if isinstance(part, Tensor) else part for name, part in parts.items()}
        return replace(value, **parts)
    return value


def errors(actual: Tensor, exact: Tensor) -> tuple[float, float]:
    """(largest, root mean square) in the units of `BOUNDS`; NaN where either has one.

    Infinities that both have are no error.
    """
    if not exact.numel():
        return 0.0, 0.0
    actual, exact = actual.double(), exact.double()
    is_infinite = exact.isinf()
    difference = (actual - exact).abs().masked_fill(is_infinite & (actual == exact), 0.0)
    finite = exact.masked_fill(is_infinite, 0.0)
    whole = finite.square().mean().sqrt().clamp(min=1e-30)
    row = finite.square().mean(-1, keepdim=True).sqrt() if finite.dim() > 1 else whole
    unit = finite.abs().maximum(row).maximum(whole)
    return float((difference / unit).max()), float(difference.square().mean().sqrt() / whole)


def op_complaint(op: Op, actual: Result, arguments: Arguments, *, rounding: torch.dtype | None = None) -> str | None:
    """What is wrong with the kernel's result for these arguments, by the operation's own measure if it has one."""
    exact = for_twin(arguments, exact=True)
    if op.complaint is not None:
        return op.complaint(exact, actual)
    return complaint(actual, op.reference(**exact), rounding=rounding)


def complaint(actual: Result, exact: Result, *, rounding: torch.dtype | None = None, slack: float = 1.0) -> str | None:
    """What is wrong with the first tensor that is: not as many, another shape, or off by too much; None if all is well.

    Allowed are `slack` times the bounds of each tensor's type, or of `rounding` where those are wider.
    """
    ours, theirs = tensors(actual), tensors(exact)
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors instead of {len(theirs)}"
    wrong = (_complaint(one, other, rounding, slack) for one, other in zip(ours, theirs, strict=True))
    return next((said for said in wrong if said), None)


def _complaint(actual: Tensor, exact: Tensor, rounding: torch.dtype | None, slack: float) -> str | None:
    if actual.shape != exact.shape:
        return f"of shape {list(actual.shape)} instead of {list(exact.shape)}"
    bounds = BOUNDS.get(actual.dtype, _EXACT)
    if rounding is not None and actual.dtype in BOUNDS:
        bounds = max(BOUNDS[rounding][0], bounds[0]), max(BOUNDS[rounding][1], bounds[1])
    largest, root_mean_square = errors(actual, exact)
    # Written so that a NaN is wrong.
    if not largest <= slack * bounds[0]:
        return f"an entry is off by {largest:.2g}, {slack * bounds[0]:.2g} is allowed"
    if not root_mean_square <= slack * bounds[1]:
        return f"off by {root_mean_square:.2g}, {slack * bounds[1]:.2g} is allowed"
    return None
