"""Attention of a few queries a sequence over paged keys and values: decoding, and the check of drafted tokens.

A sequence's positions are cut into splits of a fixed size, each attended to by itself (Flash-Decoding, Dao et al.,
2023), so that one long sequence fills the device; a second kernel puts the splits together. The query heads that share
a KV head are rows of one tile. What a row gets depends on its own sequence only. Torch twin: `paged_attention.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.cases import attention_cost, decode_cases
from kernels.attention.checks import check_attention
from kernels.attention.paged_attention import paged_attention_reference
from kernels.attention.plan import AttentionPlan
from kernels.attention.tile_kernel import LN_2, PAGE, attend_arguments, attend_pages, averaged, log_weight, padded
from kernels.checks import check, check_tensor
from kernels.jit import Launch, jit, run, tl
from kernels.operation import Op
from kernels.paging import PAGE_SIZE, PagedKV
from kernels.tuning import MAX_QUERY, MERGE, MOST_PROGRAMS, SPLIT, decode_config

_SPLIT_PAGES = tl.constexpr(SPLIT // PAGE_SIZE)
_STATES = tl.constexpr(16)
"""Splits that are put together at once."""


def paged_decode(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """Causal attention of [tokens, heads, head_dim] over the plan's pages; same shape out, contiguous.

    As `kernels.dispatch.PagedAttention`, for at most MAX_QUERY queries a sequence. Raises KernelInputError.
    """
    check(plan.max_query <= MAX_QUERY, "plan.max_query", f"at most {MAX_QUERY}", plan.max_query)
    out, launches = prepare_paged_decode(q, kv, plan, scale=scale, window=window, softcap=softcap)
    run(launches)
    return out


def prepare_paged_decode(
    q: Tensor,
    kv: PagedKV,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    max_query: int | None = None,
    skipped: Tensor | None = None,
    states: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
    log_sums: Tensor | None = None,
) -> tuple[Tensor, list[Launch]]:
    """Where the answer will be, and what has to run for it.

    `max_query`: sequences with more queries are left alone (default: the plan's). `skipped`: [sequences] int32, how
    many leading splits are already in `states`, as `split_states` makes them. `out`: as q, contiguous. `log_sums`:
    [tokens, heads] float32, filled with the natural logarithm of each row's sum of e^score. Raises KernelInputError.
    """
    check_attention(q, kv, plan, window=window, softcap=softcap)
    num_tokens, num_heads, head_dim = q.shape
    out = q.new_empty(q.shape) if out is None else out
    check_tensor("out", out, (q.dtype,), q.shape, device=q.device)
    if log_sums is not None:
        check_tensor("log_sums", log_sums, (torch.float32,), (num_tokens, num_heads), device=q.device)
    num_sequences, num_kv_heads = plan.kv_lengths.shape[0], kv.keys.shape[1]
    if not num_tokens or not num_sequences:
        return out, []
    max_query = plan.max_query if max_query is None else max_query
    num_splits = count_kv_splits(plan, max_query, window)
    if states is None and num_splits > 1:
        states = split_states(q, num_sequences * max_query, num_splits)
    totals, weights = (None, None) if states is None else states
    rows = padded(max_query * num_heads // num_kv_heads)
    programs = min(num_splits, max(1, MOST_PROGRAMS // (num_sequences * num_kv_heads)))
    merging: dict[str, object] = {
        "query_starts": plan.query_starts,
        "kv_lengths": plan.kv_lengths,
        "out": out,
        "log_sums": log_sums,
        "totals": totals,
        "weights": weights,
        "num_splits": num_splits,
        "max_query": max_query,
        "HEAD_DIM": head_dim,
        "BLOCK_D": padded(head_dim),
        "WINDOW": window,
    }
    attending = attend_arguments(q, kv, plan, scale=scale, softcap=softcap)
    arguments = {**attending, **merging, "skipped": skipped, "ROWS": rows}
    config = decode_config(q.dtype, kv.keys.dtype, head_dim, rows)
    launches = [Launch(_paged_decode_kernel, (num_sequences, num_kv_heads, programs), arguments, config)]
    if states is not None:
        launches.append(Launch(_merge_kernel, (num_sequences, max_query, num_heads), merging, MERGE))
    return out, launches


def count_kv_splits(plan: AttentionPlan, max_query: int, window: int) -> int:
    """How many splits the longest sequence may need, from host numbers only."""
    num_splits = max(1, -(-plan.max_kv // SPLIT))
    # A window that begins within a split ends within another.
    return min(num_splits, (window + max_query - 3) // SPLIT + 2) if window else num_splits


def split_states(q: Tensor, num_rows: int, num_splits: int) -> tuple[Tensor, Tensor]:
    """Room for each split's answer and its log2 weight: [rows, heads, splits, D] and [rows, heads, splits] float32.

    Row sequence * max_query + i is query i of a sequence.
    """
    shape = (num_rows, q.shape[1], num_splits)
    return q.new_empty((*shape, q.shape[2]), dtype=torch.float32), q.new_empty(shape, dtype=torch.float32)


@jit()
def _first_split(num_queries: tl.tensor, length: tl.tensor, WINDOW: tl.constexpr) -> tl.tensor:
    """The first split that some query of the sequence sees."""
    if WINDOW:
        return tl.maximum(length - num_queries - WINDOW + 1, 0) // (_SPLIT_PAGES * PAGE)
    else:
        return length * 0


@jit(varying=("page_table", "query_starts", "kv_lengths", "num_splits", "max_query", "table_stride"))
def _paged_decode_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    page_table: tl.tensor,
    query_starts: tl.tensor,
    kv_lengths: tl.tensor,
    skipped: tl.tensor,
    out: tl.tensor,
    log_sums: tl.tensor,
    totals: tl.tensor,
    weights: tl.tensor,
    q_stride: int,
    page_stride: int,
    head_stride: int,
    scale_page_stride: int,
    scale_head_stride: int,
    table_stride: int,
    num_splits: int,
    max_query: int,
    factor: float,
    cap: float,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
) -> None:
    """Program (sequence, KV head, n): every n-th split of the sequence, for the rows of that KV head."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1) * GROUP
    start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - start
    length = tl.load(kv_lengths + sequence)
    if (num_queries == 0) | (num_queries > max_query):
        return
    rows = tl.arange(0, ROWS)
    query = rows // GROUP
    row_head = head * GROUP + rows % GROUP
    dims = tl.arange(0, BLOCK_D)
    is_row = query < num_queries
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    place = (start + query).to(tl.int64) * q_stride + row_head * HEAD_DIM
    queries = tl.load(q + place[:, None] + dims[None, :], mask=mask, other=0.0)
    positions = tl.where(is_row, length - num_queries + query, -1)
    keys += head.to(tl.int64) * head_stride
    values += head.to(tl.int64) * head_stride
    if key_scales is not None:
        key_scales += head.to(tl.int64) * scale_head_stride
        value_scales += head.to(tl.int64) * scale_head_stride
    page_table += sequence.to(tl.int64) * table_stride
    first_split = _first_split(num_queries, length, WINDOW)
    start_split = first_split
    if skipped is not None:
        start_split = tl.load(skipped + sequence)
    end_split = tl.cdiv(length, _SPLIT_PAGES * PAGE)
    if totals is None:
        # A sequence of no length has no split, and its rows are still to be written.
        end_split = tl.maximum(end_split, 1)
    numbers = tl.arange(0, _SPLIT_PAGES)
    for split in tl.range(start_split + tl.program_id(2), end_split, tl.num_programs(2)):
        first_page = split * _SPLIT_PAGES
        num_pages = tl.minimum(tl.cdiv(length, PAGE) - first_page, _SPLIT_PAGES)
        pages = tl.load(page_table + first_page + numbers, mask=numbers < num_pages, other=0)
        first = 0
        if WINDOW:
            first = tl.maximum((length - num_queries - WINDOW + 1) // PAGE - first_page, 0)
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        weight = tl.zeros([ROWS], tl.float32)
        total = tl.zeros([ROWS, BLOCK_D], tl.float32)
        peak, weight, total = attend_pages(
            queries,
            positions,
            peak,
            weight,
            total,
            pages,
            first_page * PAGE,
            first,
            num_pages,
            length,
            keys,
            values,
            key_scales,
            value_scales,
            page_stride,
            scale_page_stride,
            factor,
            cap,
            HEAD_DIM,
            WINDOW,
            HAS_CAP,
            True,
        )
        total = averaged(weight, total)
        weight = log_weight(peak, weight)
        if totals is None:
            place = (start + query).to(tl.int64) * num_heads + row_head
            tl.store(out + place[:, None] * HEAD_DIM + dims[None, :], total.to(out.dtype.element_ty), mask=mask)
            if log_sums is not None:
                tl.store(log_sums + place, weight * LN_2, mask=is_row)
        else:
            row = (sequence * max_query + query).to(tl.int64) * num_heads + row_head
            place = row * num_splits + split - first_split
            tl.store(totals + place[:, None] * HEAD_DIM + dims[None, :], total, mask=mask)
            tl.store(weights + place, weight, mask=is_row)


@jit(varying=("query_starts", "kv_lengths", "num_splits", "max_query"))
def _merge_kernel(
    totals: tl.tensor,
    weights: tl.tensor,
    query_starts: tl.tensor,
    kv_lengths: tl.tensor,
    out: tl.tensor,
    log_sums: tl.tensor,
    num_splits: int,
    max_query: int,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
) -> None:
    """Program (sequence, query, head): the sequence's splits as one answer, weighted by their sums, in order."""
    sequence = tl.program_id(0)
    query = tl.program_id(1)
    start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - start
    if (query >= num_queries) | (num_queries > max_query):
        return
    length = tl.load(kv_lengths + sequence)
    num_states = tl.cdiv(length, _SPLIT_PAGES * PAGE) - _first_split(num_queries, length, WINDOW)
    dims = tl.arange(0, BLOCK_D)
    is_head = dims < HEAD_DIM
    row = (sequence * max_query + query).to(tl.int64) * tl.num_programs(2) + tl.program_id(2)
    totals += row * num_splits * HEAD_DIM
    weights += row * num_splits
    peak = tl.full([1], float("-inf"), tl.float32)
    sum_ = tl.zeros([1], tl.float32)
    total = tl.zeros([BLOCK_D], tl.float32)
    for first in tl.range(0, num_states, _STATES):
        states = first + tl.arange(0, _STATES)
        weight = tl.load(weights + states, mask=states < num_states, other=float("-inf"))
        # A state that saw nothing counts for nothing, and is not read.
        mask = (weight > float("-inf"))[:, None] & is_head[None, :]
        state = tl.load(totals + states[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
        higher = tl.maximum(peak, tl.max(weight, 0))
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.exp2(weight - reference)
        fade = tl.exp2(peak - reference)
        total = total * fade + tl.sum(state * share[:, None], 0)
        sum_ = sum_ * fade + tl.sum(share, 0)
        peak = higher
    place = (start + query).to(tl.int64) * tl.num_programs(2) + tl.program_id(2)
    total = total / tl.where(sum_ == 0.0, 1.0, sum_)
    tl.store(out + place * HEAD_DIM + dims, total.to(out.dtype.element_ty), mask=is_head)
    if log_sums is not None:
        tl.store(log_sums + place + tl.arange(0, 1), log_weight(peak, sum_) * LN_2)


OP = Op(
    name="paged_decode",
    launch=paged_decode,
    prepare=prepare_paged_decode,
    reference=paged_attention_reference,
    cases=decode_cases,
    cost=attention_cost,
)
