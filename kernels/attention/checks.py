"""What every attention kernel asks of its arguments. Nothing here waits for a device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.plan import AttentionPlan
from kernels.checks import MAX_HEAD_DIM, MODEL_DTYPES, check, check_tensor
from kernels.paging import PAGE_SIZE, PagedKV, check_pages


def check_attention(q: Tensor, kv: PagedKV, plan: AttentionPlan, *, window: int, softcap: float) -> None:
    """What every attention kernel asks of its arguments. Values are looked at only where they lie on the host.

    Raises KernelInputError.
    """
    device, keys = q.device, kv.keys
    check_tensor("q", q, MODEL_DTYPES, (None, None, None), device=device, packed=2)
    num_tokens, num_heads, head_dim = q.shape
    check(1 <= head_dim <= MAX_HEAD_DIM, "q", f"of a head_dim from 1 to {MAX_HEAD_DIM}", head_dim)
    check_pages(kv, q.dtype, head_dim, device=device)
    num_kv_heads = keys.shape[1]
    check(num_heads >= 1, "q", "of one head or more", num_heads)
    check(num_heads % num_kv_heads == 0, "q", f"of a multiple of {num_kv_heads} heads", f"{num_heads} heads")
    num_sequences = plan.kv_lengths.shape[0]
    ints = (torch.int32,)
    check_tensor("plan.page_table", plan.page_table, ints, (num_sequences, None), device=device, packed=1)
    check_tensor("plan.query_starts", plan.query_starts, ints, (num_sequences + 1,), device=device)
    check_tensor("plan.kv_lengths", plan.kv_lengths, ints, (num_sequences,), device=device)
    most = plan.page_table.shape[1] * PAGE_SIZE
    check(0 <= plan.max_kv <= most, "plan.max_kv", f"from 0 to {most}, what the page table holds", plan.max_kv)
    check(0 <= plan.max_query <= max(num_tokens, 1), "plan.max_query", f"from 0 to {num_tokens}", plan.max_query)
    check(window >= 0, "window", "0 or more", window)
    check(softcap >= 0, "softcap", "0 or more", softcap)
    if device.type == "cpu":
        _check_values(plan, num_tokens, keys.shape[0])


def _check_values(plan: AttentionPlan, num_tokens: int, num_pages: int) -> None:
    """What only a host can look at without waiting: rows, lengths and page ids."""
    starts = plan.query_starts
    counts = starts.diff()
    is_right = starts[[0, -1]].tolist() == [0, num_tokens] and bool((counts >= 0).all())
    check(is_right, "plan.query_starts", f"rising from 0 to {num_tokens}, the rows of q", starts.tolist())
    if plan.kv_lengths.numel():
        most = int(counts.max())
        is_right = plan.max_query >= most
        check(is_right, "plan.max_query", f"{most} or more, the most queries of a sequence", plan.max_query)
        shortest, longest = (int(bound) for bound in plan.kv_lengths.aminmax())
        check(shortest >= 0, "plan.kv_lengths", "0 or more", shortest)
        check(longest <= plan.max_kv, "plan.kv_lengths", f"at most plan.max_kv, {plan.max_kv}", longest)
    if plan.page_table.numel():
        lowest, highest = (int(bound) for bound in plan.page_table.aminmax())
        check(lowest >= 0, "plan.page_table", "of page ids from 0 on", lowest)
        check(highest < num_pages, "plan.page_table", f"of page ids below {num_pages}", highest)
