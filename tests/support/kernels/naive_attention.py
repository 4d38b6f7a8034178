"""Paged attention written out position by position in float64: slow, and simple enough to believe."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.plan import AttentionPlan
from kernels.paging import PAGE_SIZE, PagedKV


def naive_paged_attention(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """The contract of `kernels.dispatch.PagedAttention`; reads no slot that a query may not see."""
    num_heads, num_kv_heads = q.shape[1], kv.keys.shape[1]
    output = torch.zeros(q.shape, dtype=torch.float64)
    for sequence, length in enumerate(plan.kv_lengths.tolist()):
        start, end = plan.query_starts[sequence : sequence + 2].tolist()
        keys, values = _gathered(kv, plan.page_table[sequence], length)
        keys, values = (x.repeat_interleave(num_heads // num_kv_heads, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[start:end].double(), keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        positions = torch.arange(length - (end - start), length)[:, None]
        seen = torch.arange(length) <= positions
        if window:
            seen &= torch.arange(length) > positions - window
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        output[start:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return output.to(q.dtype)


def _gathered(kv: PagedKV, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values [length, kv_heads, head_dim] float64 of one sequence."""
    positions = torch.arange(length)
    pages, offsets = table[positions // PAGE_SIZE].long(), positions % PAGE_SIZE
    keys, values = (x[pages, :, offsets].double() for x in (kv.keys, kv.values))
    if kv.key_scales is not None and kv.value_scales is not None:
        keys = keys * kv.key_scales[pages, :, offsets].double()[..., None]
        values = values * kv.value_scales[pages, :, offsets].double()[..., None]
    return keys, values
