"""Attention where neighbouring sequences begin with the same pages: a shared prefix is read once, not once a sequence.

The splits of `decode_kernel.py`, of which those that a whole group has in common are attended to by the rows of all its
sequences at once; the rest and the merge are the decode kernel's own. (Cascade inference, Ye et al., FlashInfer, 2024.)
Torch twin: `paged_attention.py`, which knows nothing of groups.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803, N806

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.cases import cascade_cost, shared_cases
from kernels.attention.checks import check_attention
from kernels.attention.decode_kernel import count_kv_splits, prepare_paged_decode, split_states
from kernels.attention.paged_attention import paged_attention_reference
from kernels.attention.plan import AttentionPlan, SharedPrefixes
from kernels.attention.tile_kernel import PAGE, attend_arguments, attend_pages, averaged, log_weight, padded
from kernels.checks import check, check_tensor
from kernels.jit import Launch, jit, run, tl
from kernels.operation import Op
from kernels.paging import PAGE_SIZE, PagedKV
from kernels.tuning import MAX_QUERY, SPLIT, prefill_config, prefill_rows

_SPLIT_PAGES = tl.constexpr(SPLIT // PAGE_SIZE)


def cascade(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, shared: SharedPrefixes, *, scale: float, softcap: float = 0.0
) -> Tensor:
    """Causal attention of [tokens, heads, head_dim] over the plan's pages, as `paged_decode` without a window.

    What the groups share is taken at their word: a sequence's own page ids of it are not read, but those of its group's
    first. Raises KernelInputError.
    """
    out, launches = prepare_cascade(q, kv, plan, shared, scale=scale, softcap=softcap)
    run(launches)
    return out


def cascade_reference(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, shared: SharedPrefixes, *, scale: float, softcap: float = 0.0
) -> Tensor:
    """The same from each sequence's own pages."""
    del shared
    return paged_attention_reference(q, kv, plan, scale=scale, softcap=softcap)


def prepare_cascade(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, shared: SharedPrefixes, *, scale: float, softcap: float = 0.0
) -> tuple[Tensor, list[Launch]]:
    """Where the answer will be, and what has to run for it. Raises KernelInputError."""
    check_attention(q, kv, plan, window=0, softcap=softcap)
    check(plan.max_query <= MAX_QUERY, "plan.max_query", f"at most {MAX_QUERY}", plan.max_query)
    num_sequences, num_groups = plan.kv_lengths.shape[0], shared.num_shared.shape[0]
    ints = (torch.int32,)
    check_tensor("shared.group_starts", shared.group_starts, ints, (num_groups + 1,), device=q.device)
    check_tensor("shared.num_shared", shared.num_shared, ints, (num_groups,), device=q.device)
    check_tensor("shared.skipped", shared.skipped, ints, (num_sequences,), device=q.device)
    num_splits = count_kv_splits(plan, plan.max_query, 0)
    # What is shared ends before the last position, and is read without a look at the page table's width.
    most = max(plan.max_kv - 1, 0) // SPLIT
    check(0 <= shared.max_shared <= most, "shared.max_shared", f"from 0 to {most} splits", shared.max_shared)
    if not shared.max_shared or not q.shape[0]:
        return prepare_paged_decode(q, kv, plan, scale=scale, softcap=softcap)
    totals, weights = states = split_states(q, num_sequences * plan.max_query, num_splits)
    out, launches = prepare_paged_decode(
        q, kv, plan, scale=scale, softcap=softcap, skipped=shared.skipped, states=states
    )
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = kv.keys.shape[1]
    group = num_heads // num_kv_heads
    rows = max(prefill_rows(q.dtype, head_dim), padded(group))
    num_tiles = -(-shared.max_members * plan.max_query // (rows // group))
    arguments = {
        **attend_arguments(q, kv, plan, scale=scale, softcap=softcap),
        "group_starts": shared.group_starts,
        "num_shared": shared.num_shared,
        "totals": totals,
        "weights": weights,
        "num_splits": num_splits,
        "num_tiles": num_tiles,
        "max_query": plan.max_query,
        "ROWS": rows,
    }
    grid = (num_groups * num_tiles, num_kv_heads, shared.max_shared)
    config = prefill_config(q.dtype, head_dim)
    return out, [Launch(_shared_prefix_kernel, grid, arguments, config), *launches]


@jit(varying=("page_table", "query_starts", "num_splits", "num_tiles", "max_query", "table_stride"))
def _shared_prefix_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    page_table: tl.tensor,
    query_starts: tl.tensor,
    group_starts: tl.tensor,
    num_shared: tl.tensor,
    totals: tl.tensor,
    weights: tl.tensor,
    q_stride: int,
    page_stride: int,
    head_stride: int,
    scale_page_stride: int,
    scale_head_stride: int,
    table_stride: int,
    num_splits: int,
    num_tiles: int,
    max_query: int,
    factor: float,
    cap: float,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_CAP: tl.constexpr,
) -> None:
    """Program (tile of a group, KV head, split): the states of one shared split, for ROWS // GROUP queries."""
    QUERIES: tl.constexpr = ROWS // GROUP
    group = tl.program_id(0) // num_tiles
    first_query = tl.program_id(0) % num_tiles * QUERIES
    head = tl.program_id(1)
    split = tl.program_id(2)
    first_member = tl.load(group_starts + group)
    end_member = tl.load(group_starts + group + 1)
    if (split >= tl.load(num_shared + group)) | (first_member + first_query // max_query >= end_member):
        return
    rows = tl.arange(0, ROWS)
    member = first_member + (first_query + rows // GROUP) // max_query
    query = (first_query + rows // GROUP) % max_query
    is_row = (member < end_member) & (rows < QUERIES * GROUP)
    start = tl.load(query_starts + member, mask=is_row, other=0)
    is_row &= query < tl.load(query_starts + member + 1, mask=is_row, other=0) - start
    row_head = head * GROUP + rows % GROUP
    dims = tl.arange(0, BLOCK_D)
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    place = (start + query).to(tl.int64) * q_stride + row_head * HEAD_DIM
    queries = tl.load(q + place[:, None] + dims[None, :], mask=mask, other=0.0)
    keys += head.to(tl.int64) * head_stride
    values += head.to(tl.int64) * head_stride
    if key_scales is not None:
        key_scales += head.to(tl.int64) * scale_head_stride
        value_scales += head.to(tl.int64) * scale_head_stride
    first_page = split * _SPLIT_PAGES
    pages = tl.load(page_table + first_member.to(tl.int64) * table_stride + first_page + tl.arange(0, _SPLIT_PAGES))
    peak, weight, total = attend_pages(
        queries,
        member,
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, BLOCK_D], tl.float32),
        pages,
        first_page * PAGE,
        0,
        _SPLIT_PAGES,
        (split + 1) * _SPLIT_PAGES * PAGE,
        keys,
        values,
        key_scales,
        value_scales,
        page_stride,
        scale_page_stride,
        factor,
        cap,
        HEAD_DIM,
        0,
        HAS_CAP,
        False,
    )
    state = ((member * max_query + query).to(tl.int64) * tl.num_programs(1) * GROUP + row_head) * num_splits + split
    tl.store(totals + state[:, None] * HEAD_DIM + dims[None, :], averaged(weight, total), mask=mask)
    tl.store(weights + state, log_weight(peak, weight), mask=is_row)


OP = Op(
    name="cascade",
    launch=cascade,
    prepare=prepare_cascade,
    reference=cascade_reference,
    cases=shared_cases,
    cost=cascade_cost,
)
