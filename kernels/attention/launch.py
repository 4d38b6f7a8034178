"""Paged attention on CUDA, whatever a step is made of: the decode kernel, the prefill kernel, or both."""

from __future__ import annotations

from torch import Tensor

from kernels.attention.cascade_kernel import prepare_cascade
from kernels.attention.decode_kernel import prepare_paged_decode
from kernels.attention.plan import AttentionPlan
from kernels.attention.prefill_kernel import prepare_paged_prefill
from kernels.jit import Launch, launched
from kernels.paging import PagedKV
from kernels.tuning import MAX_QUERY


def prepare_paged_attention(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
) -> tuple[Tensor, list[Launch]]:
    """Where the answer will be, contiguous, and what has to run for it. Raises KernelInputError.

    A sequence of one query always takes the decode kernel, also beside prompts, so that its numbers do not depend on
    its neighbours; but what sequences share is read by another tile's shape, which may round its last bit otherwise.
    """
    if plan.max_query <= MAX_QUERY:
        if plan.shared is not None and not window:
            return prepare_cascade(q, kv, plan, plan.shared, scale=scale, softcap=softcap)
        return prepare_paged_decode(q, kv, plan, scale=scale, window=window, softcap=softcap)
    is_decoding = q.shape[0] < plan.max_query * plan.kv_lengths.shape[0]
    min_query = 2 if is_decoding else 1
    out, launches = prepare_paged_prefill(q, kv, plan, scale=scale, window=window, softcap=softcap, min_query=min_query)
    if is_decoding:
        _, more = prepare_paged_decode(q, kv, plan, scale=scale, window=window, softcap=softcap, max_query=1, out=out)
        launches += more
    return out, launches


paged_attention = launched(prepare_paged_attention)
"""As `kernels.dispatch.PagedAttention`. Raises KernelInputError."""
