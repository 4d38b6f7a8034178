"""Causal attention of a step's queries over paged keys and values: the torch twin of the decode and prefill kernels.

Sequences that bring the same few queries and are of similar length are gathered and attended together; a prompt's
chunk is attended by itself. What is gathered and hidden is worked out once a step, in its first layer. Positions are
gathered one by one, so that none is among them that was never written; whole pages, where a slice cuts the rest off.

Ways to decode, us a layer, 12 heads of 64, one thread (EPYC, torch 2.13, beside other work: ratios count):

                                        bf16, 12 KV heads            bf16, 3 KV heads        float32, 12 KV heads
    sequences x positions         1x100  1x500  8x100  8x500    1x100  1x500  8x100  8x500    1x100  1x500  8x100
    gather alone                     16     49     95   1277       10     15     29    156       27    132    255
    fused, contiguous (no pages)    146    675   1092   6530       25     92    143    720       31    174    290
    gather, fused, one by one       263    759   1434   8804       39    144    330   1400       77    355    661
    gather, fused, masked           188    763   1502   8457       50    120    208    864      107    297    673
    gather, batched products        106    216    347   2728      140    192    252   1121       91    337    515
    products page by page           173    278    389   2768      111    188    337   1560      127    404    412
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kernels.attention.plan import AttentionPlan
from kernels.paging import PAGE_SIZE, PagedKV

GATHERED_BYTES = 2**21
"""Keys gathered at once, unless a single sequence has more: what still lies in a core's cache when it is multiplied."""
PADDED_POSITIONS = 2 * PAGE_SIZE
"""A sequence is filled up to these rather than attended with those of its length alone: a group more costs more."""
MAX_BATCHED_QUERIES = 8
"""Sequences with more queries than a speculative step has are attended one by one."""


def paged_attention_reference(
    q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """Causal attention of [tokens, heads, head_dim] over the plan's pages; same shape out, contiguous.

    `window` > 0: a query sees its last `window` positions, its own included. `softcap` > 0: scores become
    softcap * tanh(score / softcap). Each token's heads of `q` are contiguous, tokens need not be. Rows of a sequence
    whose kv_length is 0 come out as zeros. The twin reads the plan on the host.
    """
    groups = _groups(q, kv, plan, window, softcap)
    if len(groups) == 1 and groups[0].tokens is None:
        return _attend(q, kv, groups[0], scale=scale, softcap=softcap)
    out = q.new_zeros(q.shape)
    for group in groups:
        tokens = group.tokens
        assert tokens is not None, "only a step's single group leaves its tokens out"
        out.index_copy_(0, tokens, _attend(q.index_select(0, tokens), kv, group, scale=scale, softcap=softcap))
    return out


@dataclass(frozen=True, slots=True)
class _Form:
    """What a layer's groups depend on besides the plan. `row_bytes`: keys of one position in the queries' type."""

    num_kv_heads: int
    head_dim: int
    row_bytes: int
    window: int
    can_fuse: bool
    fewest_fused_rows: int
    num_shared: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences attended together: each has `num_queries` queries and as many gathered positions.

    shape       (sequences, kv_heads, -1, D)
    blocks      [sequences * kv_heads * n] int64, which blocks of a page's head to gather
    block_size  positions of such a block
    visible     the first of the gathered positions to look at, and their number; None for all
    tokens      [sequences * queries] int64, the group's flat rows; None for all of the step's, in order
    hidden      [sequences, 1, 1, queries, positions] bool, what a query must not see; None where it sees everything
    added       [sequences, 1, queries * shared heads, positions], -inf where hidden, where few queries are fused
    """

    num_queries: int
    shape: tuple[int, int, int, int]
    blocks: Tensor
    block_size: int
    visible: tuple[int, int] | None
    tokens: Tensor | None
    hidden: Tensor | None
    added: Tensor | None
    is_fused: bool
    is_whole: bool
    """A single sequence whose queries are all of its positions: plainly causal."""
    is_long: bool
    """More queries than a speculative step has: their heads are not laid out as rows."""

    @property
    def lasts(self) -> bool:
        """Whether a step later only `visible` is another: whole pages, seen to the same end by one query each."""
        return self.num_queries == 1 and self.visible is not None and self.tokens is None


def _attend(q: Tensor, kv: PagedKV, group: _Group, *, scale: float, softcap: float) -> Tensor:
    """[sequences * queries, heads, head_dim] of one group, in its order; same shape out."""
    keys, values = _gathered(kv.keys, group, q.dtype), _gathered(kv.values, group, q.dtype)
    if group.is_fused and not group.is_long:
        return _fused(q, keys, values, group, scale)
    num_sequences, num_kv_heads, _, head_dim = group.shape
    # [B, kv_heads, shared, queries, D]
    rows = q.view(num_sequences, group.num_queries, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    if group.is_fused:
        out = _fused_long(rows, keys, values, group, scale)
    else:
        out = _batched(rows, keys, values, kv, group, scale=scale, softcap=softcap)
    return out.permute(0, 3, 1, 2, 4).reshape(q.shape).contiguous()


def _fused(q: Tensor, keys: Tensor, values: Tensor, group: _Group, scale: float) -> Tensor:
    """[B * queries, heads, D] over [B, kv_heads, positions, D]; shaped as `q`, contiguous.

    Queries and the heads that share a KV head are its rows: half the time of expanding the keys to them.
    """
    num_queries = group.num_queries
    if num_queries == 1:
        rows = q.view(group.shape)
        out = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=group.added, scale=scale)
        return out.reshape(q.shape)
    num_sequences, num_kv_heads, _, head_dim = group.shape
    rows = q.view(num_sequences, num_queries, num_kv_heads, -1, head_dim).transpose(1, 2).reshape(group.shape)
    out = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=group.added, scale=scale)
    return out.view(num_sequences, num_kv_heads, num_queries, -1, head_dim).transpose(1, 2).reshape(q.shape)


def _fused_long(rows: Tensor, keys: Tensor, values: Tensor, group: _Group, scale: float) -> Tensor:
    """[1, kv_heads, shared, queries, D] over [1, kv_heads, positions, D] of a single sequence -> shaped as `rows`."""
    shape = (*rows.shape[1:3], *keys.shape[2:])
    hidden = None if group.is_whole or group.hidden is None else ~group.hidden[0, 0, 0]
    out = functional.scaled_dot_product_attention(
        rows[0],
        keys[0].unsqueeze(1).expand(shape),
        values[0].unsqueeze(1).expand(shape),
        attn_mask=hidden,
        is_causal=group.is_whole,
        scale=scale,
    )
    return out.unsqueeze(0)


def _batched(
    rows: Tensor, keys: Tensor, values: Tensor, kv: PagedKV, group: _Group, *, scale: float, softcap: float
) -> Tensor:
    """[B, kv_heads, shared, queries, D] over [B, kv_heads, positions, D] -> shaped as `rows`."""
    num_products = keys.shape[0] * keys.shape[1]
    keys, values = keys.reshape(num_products, *keys.shape[2:]), values.reshape(num_products, *values.shape[2:])
    scores = torch.bmm(rows.reshape(num_products, -1, rows.shape[4]) * scale, keys.transpose(1, 2))
    if kv.key_scales is not None:
        scores.mul_(_gathered_scales(kv.key_scales, group, scores))
    if softcap:
        scores.div_(softcap).tanh_().mul_(softcap)
    if group.hidden is not None:
        scores.view(*rows.shape[:4], -1).masked_fill_(group.hidden, -torch.inf)
    weights = scores.softmax(-1)
    if kv.value_scales is not None:
        weights.mul_(_gathered_scales(kv.value_scales, group, weights))
    return torch.bmm(weights, values).view(rows.shape)


def _gathered(pages: Tensor, group: _Group, dtype: torch.dtype) -> Tensor:
    """The group's positions of [pages, kv_heads, PAGE_SIZE, D] as [B, kv_heads, positions, D] in `dtype`."""
    block_numbers, page_dtype = group.block_size * group.shape[3], pages.dtype
    if page_dtype == torch.float8_e4m3fn:
        # Gathering is not implemented for float8; the bytes are the same.
        pages = pages.view(torch.uint8)
    taken = pages.view(-1, block_numbers).index_select(0, group.blocks)
    if page_dtype != dtype:
        taken = taken.view(page_dtype).to(dtype)
    taken = taken.view(group.shape)
    # Half the time of an index with three slices.
    return taken if group.visible is None else taken.narrow(2, *group.visible)


def _gathered_scales(scales: Tensor, group: _Group, scores: Tensor) -> Tensor:
    """The group's scales of [pages, kv_heads, PAGE_SIZE] for `scores` [B * kv_heads, rows, positions], in its type."""
    taken = scales.view(-1, group.block_size).index_select(0, group.blocks).view(scores.shape[0], 1, -1)
    return taken.to(scores.dtype)


def _groups(q: Tensor, kv: PagedKV, plan: AttentionPlan, window: int, softcap: float) -> list[_Group]:
    """The step's groups, from the plan where an earlier layer left them there."""
    is_quantized = kv.key_scales is not None
    key = ("paged_attention_reference", q.shape, q.dtype, kv.keys.shape, is_quantized, window, not softcap)
    groups = plan.derived.get(key)
    if groups is None and (lasting := plan.lasting.get(key)) is not None:
        group = replace(cast(_Group, lasting), visible=(0, plan.max_kv))
        groups = plan.derived[key] = [group]
    if groups is None:
        _, num_kv_heads, _, head_dim = kv.keys.shape
        form = _Form(
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            row_bytes=num_kv_heads * head_dim * q.element_size(),
            window=window,
            can_fuse=not is_quantized and not softcap,
            # One query row a head is where fused attention is slow in the half types: 188 us against 106 for 12 heads
            # of 64 at 100 positions, 763 against 216 at 500.
            fewest_fused_rows=1 if q.dtype == torch.float32 else 2,
            num_shared=q.shape[1] // num_kv_heads,
            dtype=q.dtype,
        )
        made = _make_groups(plan, form)
        groups = plan.derived[key] = made
        if len(made) == 1 and made[0].lasts and not window:
            plan.lasting[key] = made[0]
    return cast("list[_Group]", groups)


def _make_groups(plan: AttentionPlan, form: _Form) -> list[_Group]:
    # In numpy: where there is little to do, its calls cost a third of torch's.
    table, device = plan.page_table.cpu().numpy(), plan.page_table.device
    starts, lengths = plan.query_starts.tolist(), plan.kv_lengths.tolist()
    alike: dict[tuple[int, int, int], list[_Member]] = {}
    for sequence, (start, end, length) in enumerate(zip(starts, starts[1:], lengths, strict=False)):
        num_queries = end - start
        if not length or not num_queries:
            continue
        earliest = max(0, length - num_queries - form.window + 1) if form.window else 0
        alone = sequence if num_queries > MAX_BATCHED_QUERIES else -1
        # Padding a sequence to the longest of its group at most doubles it, or fills PADDED_POSITIONS.
        key = (num_queries, ((length - earliest - 1) // PADDED_POSITIONS).bit_length(), alone)
        alike.setdefault(key, []).append(_Member(sequence, start, num_queries, earliest, length))
    groups: list[_Group] = []
    for members in alike.values():
        longest = max(member.length - member.earliest for member in members)
        at_once = max(1, GATHERED_BYTES // (longest * form.row_bytes))
        parts = [members[first : first + at_once] for first in range(0, len(members), at_once)]
        groups += [_make_group(part, table, form, device) for part in parts]
    return groups


@dataclass(frozen=True, slots=True)
class _Member:
    """One sequence of a group; its queries see nothing before position `earliest`."""

    sequence: int
    start: int
    num_queries: int
    earliest: int
    length: int


def _make_group(members: Sequence[_Member], table: NDArray[numpy.int32], form: _Form, device: torch.device) -> _Group:
    first, num_queries, is_all = members[0], members[0].num_queries, len(members) == len(table)
    if not is_all:
        table = table[[member.sequence for member in members]]
    first_page = min(member.earliest for member in members) // PAGE_SIZE
    table = table[:, first_page : -(-max(member.length for member in members) // PAGE_SIZE)]
    width = max(member.length - member.earliest for member in members)
    is_level = all(member.length == first.length and member.earliest == first.earliest for member in members)
    is_fused = form.can_fuse and form.num_shared * num_queries >= form.fewest_fused_rows
    is_long = num_queries > MAX_BATCHED_QUERIES
    # Batched products of what is cut out of whole pages take three times as long.
    is_paged = is_level and is_fused
    offset = first_page * PAGE_SIZE
    numbers = numpy.array([(member.earliest, member.length) for member in members])
    earliest, lengths = numbers[:, :1], numbers[:, 1:]
    positions = earliest + numpy.arange(width)
    visible, hidden, added = None, None, None
    if is_paged:
        blocks = table[:, None] * numpy.int64(form.num_kv_heads) + numpy.arange(form.num_kv_heads)[:, None]
        visible = (first.earliest - offset, width)
    else:
        # Filled up with the last one, which was written to: stale numbers, if NaN, would undo a weight of 0.
        blocks = _rows(table, numpy.minimum(positions, lengths - 1) - offset, form.num_kv_heads)
    if num_queries > 1 or not is_level:
        hidden = torch.from_numpy(_hidden(positions, lengths, num_queries, form.window)).to(device)
        if is_fused and not is_long:
            seen = torch.zeros(hidden.shape, dtype=form.dtype, device=device).masked_fill_(hidden, -torch.inf)
            # Each query's row for all heads that share a KV head.
            added = seen.transpose(2, 3).expand(-1, -1, -1, form.num_shared, -1).flatten(2, 3)
    tokens = None
    if not is_all:
        rows = [token for member in members for token in range(member.start, member.start + num_queries)]
        tokens = torch.tensor(rows, device=device)
    return _Group(
        num_queries=num_queries,
        shape=(len(members), form.num_kv_heads, -1, form.head_dim),
        blocks=torch.from_numpy(blocks.reshape(-1)).to(device),
        block_size=PAGE_SIZE if is_paged else 1,
        visible=visible,
        tokens=tokens,
        hidden=hidden,
        added=added,
        is_fused=is_fused,
        is_whole=len(members) == 1 and num_queries == first.length and (not form.window or form.window >= num_queries),
        is_long=is_long,
    )


def _rows(table: NDArray[numpy.int32], positions: NDArray[numpy.int64], num_kv_heads: int) -> NDArray[numpy.int64]:
    """[B, pages] and [B, n] -> where in all pages' rows each head has those positions, [B, kv_heads, n]."""
    pages, offsets = positions // PAGE_SIZE, positions % PAGE_SIZE
    first = numpy.take_along_axis(table, pages, axis=1) * numpy.int64(num_kv_heads * PAGE_SIZE) + offsets
    rows: NDArray[numpy.int64] = first[:, None] + numpy.arange(0, num_kv_heads * PAGE_SIZE, PAGE_SIZE)[:, None]
    return rows


def _hidden(
    positions: NDArray[numpy.int64], lengths: NDArray[numpy.int64], num_queries: int, window: int
) -> NDArray[numpy.bool_]:
    """Which of `positions` [B, n] each of a sequence's last queries must not see, [B, 1, 1, queries, n]."""
    own = (lengths - num_queries + numpy.arange(num_queries))[:, :, None]
    others = positions[:, None]
    hidden = others > own
    if window:
        hidden |= others <= own - window
    return hidden[:, None, None]
