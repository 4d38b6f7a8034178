"""Paged attention on CUDA, whatever a step is made of: the decode kernel, the prefill kernel, or both."""

from __future__ import annotations

from torch import Tensor

from kernels.cascade import cascade
from kernels.jit import run
from kernels.paged_decode import paged_decode, prepare_paged_decode
from kernels.paged_prefill import prepare_paged_prefill
from kernels.paging import AttentionPlan, PagedKV
from kernels.tuning import MAX_QUERY


def paged_attention(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """See `kernels.dispatch.PagedAttention`; the result is contiguous. Raises KernelInputError.

    A sequence of one query always takes the decode kernel, also beside prompts, so that its numbers do not depend on
    its neighbours; but what sequences share is read by another tile's shape, which may round its last bit otherwise.
    """
    if plan.max_query <= MAX_QUERY:
        if plan.shared is not None and not window:
            return cascade(q, kv, plan, plan.shared, scale=scale, softcap=softcap)
        return paged_decode(q, kv, plan, scale=scale, window=window, softcap=softcap)
    is_decoding = q.shape[0] < plan.max_query * plan.kv_lengths.shape[0]
    min_query = 2 if is_decoding else 1
    out, launches = prepare_paged_prefill(q, kv, plan, scale=scale, window=window, softcap=softcap, min_query=min_query)
    if is_decoding:
        _, more = prepare_paged_decode(q, kv, plan, scale=scale, window=window, softcap=softcap, max_query=1, out=out)
        launches += more
    run(launches)
    return out
