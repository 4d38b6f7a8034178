"""Causal attention of a prompt's chunk over paged keys and values: what came before it, and itself.

Sequences of any number of queries share one launch. A tile is some queries with all heads that share a KV head, over
one page at a time; pages that every row of the tile sees are attended to without a mask. Torch twin:
`paged_attention.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803, N806

from __future__ import annotations

from torch import Tensor

from kernels.attention.cases import attention_cost, prefill_cases
from kernels.attention.checks import check_attention
from kernels.attention.paged_attention import paged_attention_reference
from kernels.attention.plan import AttentionPlan
from kernels.attention.tile_kernel import PAGE, attend_arguments, attend_pages, averaged, padded
from kernels.checks import check_tensor
from kernels.jit import Launch, jit, run, tl
from kernels.operation import Op
from kernels.paging import PagedKV
from kernels.tuning import prefill_config, prefill_rows

_PAGES = tl.constexpr(32)
"""Page ids read at once."""
_SEQUENCES = tl.constexpr(256)
"""Sequences looked through at once for the one a tile belongs to."""


def paged_prefill(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """Causal attention of [tokens, heads, head_dim] over the plan's pages; same shape out, contiguous.

    As `kernels.dispatch.PagedAttention`. Raises KernelInputError.
    """
    out, launches = prepare_paged_prefill(q, kv, plan, scale=scale, window=window, softcap=softcap)
    run(launches)
    return out


def prepare_paged_prefill(
    q: Tensor,
    kv: PagedKV,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    min_query: int = 1,
    out: Tensor | None = None,
) -> tuple[Tensor, list[Launch]]:
    """Where the answer will be, and what has to run for it. Sequences of fewer queries than `min_query` are left alone.

    Raises KernelInputError.
    """
    check_attention(q, kv, plan, window=window, softcap=softcap)
    num_tokens, num_heads, head_dim = q.shape
    out = q.new_empty(q.shape) if out is None else out
    check_tensor("out", out, (q.dtype,), q.shape, device=q.device)
    num_sequences, num_kv_heads = plan.kv_lengths.shape[0], kv.keys.shape[1]
    group = num_heads // num_kv_heads
    if not num_tokens or not num_sequences:
        return out, []
    rows = max(prefill_rows(q.dtype, head_dim), padded(group))
    arguments = {
        **attend_arguments(q, kv, plan, scale=scale, softcap=softcap),
        "kv_lengths": plan.kv_lengths,
        "out": out,
        "num_sequences": num_sequences,
        "min_query": min_query,
        "ROWS": rows,
        "WINDOW": window,
    }
    # Each sequence may leave its last tile part empty.
    num_tiles = num_tokens // (rows // group) + num_sequences
    config = prefill_config(q.dtype, head_dim)
    return out, [Launch(_paged_prefill_kernel, (num_kv_heads, num_tiles), arguments, config)]


@jit()
def _sequence_of(
    tile: tl.tensor, query_starts: tl.tensor, num_sequences: tl.tensor, QUERIES: tl.constexpr
) -> tl.tensor:
    """Which sequence a tile belongs to, if sequence b's tiles begin at number query_starts[b] // QUERIES + b."""
    count = tile * 0
    for first in tl.range(0, num_sequences, _SEQUENCES):
        numbers = first + tl.arange(0, _SEQUENCES)
        starts = tl.load(query_starts + numbers, mask=numbers < num_sequences, other=0)
        count += tl.sum(((numbers < num_sequences) & (starts // QUERIES + numbers <= tile)).to(tl.int32))
    return count - 1


@jit(varying=("page_table", "query_starts", "kv_lengths", "num_sequences", "min_query", "table_stride"))
def _paged_prefill_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    page_table: tl.tensor,
    query_starts: tl.tensor,
    kv_lengths: tl.tensor,
    out: tl.tensor,
    q_stride: int,
    page_stride: int,
    head_stride: int,
    scale_page_stride: int,
    scale_head_stride: int,
    table_stride: int,
    num_sequences: int,
    min_query: int,
    factor: float,
    cap: float,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
) -> None:
    """Program (KV head, tile): ROWS // GROUP neighbouring queries of one sequence, with their GROUP heads."""
    QUERIES: tl.constexpr = ROWS // GROUP
    head = tl.program_id(0)
    num_heads = tl.num_programs(0) * GROUP
    # The last tiles see the most, so they begin first.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    sequence = _sequence_of(tile, query_starts, num_sequences, QUERIES)
    start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - start
    first_query = (tile - start // QUERIES - sequence) * QUERIES
    if (first_query >= num_queries) | (num_queries < min_query):
        return
    length = tl.load(kv_lengths + sequence)
    rows = tl.arange(0, ROWS)
    query = first_query + rows // GROUP
    row_head = head * GROUP + rows % GROUP
    dims = tl.arange(0, BLOCK_D)
    is_row = (query < num_queries) & (rows < QUERIES * GROUP)
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
    # A sequence of no length has no page, whatever it was given as queries.
    earliest = tl.maximum(length - num_queries + first_query, 0)
    end_page = tl.cdiv(tl.minimum(earliest + QUERIES, length), PAGE)
    # Pages [first_page, whole_end) are seen whole by every row, pages [whole_end, end_page) in part.
    whole_end = (earliest + 1) // PAGE
    if WINDOW:
        whole_end = tl.maximum(earliest - WINDOW + 1, 0) // PAGE
    numbers = tl.arange(0, _PAGES)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, BLOCK_D], tl.float32)
    if not WINDOW:
        for base in tl.range(0, whole_end, _PAGES):
            pages = tl.load(page_table + base + numbers, mask=base + numbers < whole_end, other=0)
            peak, weight, total = attend_pages(
                queries,
                positions,
                peak,
                weight,
                total,
                pages,
                base * PAGE,
                0,
                tl.minimum(whole_end - base, _PAGES),
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
                False,
            )
    for base in tl.range(whole_end, end_page, _PAGES):
        pages = tl.load(page_table + base + numbers, mask=base + numbers < end_page, other=0)
        peak, weight, total = attend_pages(
            queries,
            positions,
            peak,
            weight,
            total,
            pages,
            base * PAGE,
            0,
            tl.minimum(end_page - base, _PAGES),
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
    place = ((start + query).to(tl.int64) * num_heads + row_head) * HEAD_DIM
    tl.store(out + place[:, None] + dims[None, :], total.to(out.dtype.element_ty), mask=mask)


OP = Op(
    name="paged_prefill",
    launch=paged_prefill,
    prepare=prepare_paged_prefill,
    reference=paged_attention_reference,
    cases=prefill_cases,
    cost=attention_cost,
)
