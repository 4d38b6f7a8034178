"""How far a kernel's result may be from the exact one."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paging import AttentionPlan, PagedKV
from kernels.registry import Arguments

BOUNDS = {torch.float32: (5e-6, 1e-6), torch.float16: (5e-3, 6e-4), torch.bfloat16: (4e-2, 4e-3)}
"""The largest error and the root mean square of all errors, both in units of the exact result's root mean square."""


def for_twin(arguments: Arguments, *, exact: bool = False) -> Arguments:
    """The same arguments with pages packed, as torch twins want them; `exact`: with all in float64."""
    return {name: _for_twin(value, exact) for name, value in arguments.items()}


def _for_twin(value: object, exact: bool) -> object:
    if isinstance(value, Tensor) and value.is_floating_point() and exact:
        return value.double()
    if isinstance(value, PagedKV):
        parts = (value.keys, value.values, value.key_scales, value.value_scales)
        return PagedKV(*(None if part is None else (part.double() if exact else part).contiguous() for part in parts))
    return value


def exact_log_sums(q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float) -> Tensor:
    """The logarithm of each row's sum of e^score over unquantized keys, [tokens, heads] float64; -inf without any."""
    sums = torch.full(q.shape[:2], float("-inf"), dtype=torch.float64)
    starts = plan.query_starts.tolist()
    for sequence, length in enumerate(plan.kv_lengths.tolist()):
        # [kv_heads, positions, D]
        keys = kv.keys[plan.page_table[sequence].long()].double().transpose(0, 1).flatten(1, 2)
        keys = keys.repeat_interleave(q.shape[1] // keys.shape[0], dim=0)
        for row in range(starts[sequence], starts[sequence + 1]):
            seen = keys[:, : max(0, length - starts[sequence + 1] + row + 1)]
            sums[row] = (torch.einsum("hd,hkd->hk", q[row].double(), seen) * scale).logsumexp(dim=-1)
    return sums


def errors(actual: Tensor, exact: Tensor) -> tuple[float, float]:
    """(largest, root mean square), each over the exact result's root mean square; NaN where either has one."""
    if not exact.numel():
        return 0.0, 0.0
    difference = (actual.double() - exact).abs()
    unit = exact.square().mean().sqrt().clamp(min=1e-30)
    return float(difference.max() / unit), float(difference.square().mean().sqrt() / unit)


def assert_close(actual: Tensor, exact: Tensor, *, rounding: torch.dtype | None = None, slack: float = 1.0) -> None:
    """Same shape, and both errors within `slack` times the bounds of `rounding` (default: the result's type)."""
    assert actual.shape == exact.shape
    largest, root_mean_square = errors(actual, exact)
    most, most_on_the_whole = (slack * bound for bound in BOUNDS[rounding or actual.dtype])
    # Written so that a NaN fails.
    assert largest <= most, f"an entry is off by {largest:.2g}, {most:.2g} is allowed"
    assert root_mean_square <= most_on_the_whole, f"off by {root_mean_square:.2g}, {most_on_the_whole:.2g} is allowed"
