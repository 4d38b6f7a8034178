"""Assertions about how far a kernel's result is from the exact one, with the bounds of `kernels/exactness.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.plan import AttentionPlan
from kernels.exactness import complaint, op_complaint
from kernels.operation import Arguments, Op, Result
from kernels.paging import PagedKV


def assert_op_close(op: Op, arguments: Arguments, exact: Arguments, *, rounding: torch.dtype | None = None) -> None:
    """The kernel's result is that of its twin in float64, tensor by tensor; each is given arguments of its own.

    Raises AssertionError.
    """
    said = op_complaint(op, op.launch(**arguments), exact, rounding=rounding)
    assert said is None, said


def assert_close(actual: Result, exact: Result, *, rounding: torch.dtype | None = None, slack: float = 1.0) -> None:
    """As many tensors of the same shapes, each within `slack` times its bounds. Raises AssertionError."""
    said = complaint(actual, exact, rounding=rounding, slack=slack)
    assert said is None, said


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
