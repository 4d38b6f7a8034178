"""Causal attention of a step's queries over paged keys and values: the torch twin of the decode and prefill kernels.

Sequences that bring the same few queries and are of similar length share one gather and one pair of batched products;
a prompt's chunk is attended by itself. What is gathered and hidden is worked out once a step, in its first layer.

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
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from kernels.paging import PAGE_SIZE, AttentionPlan, PagedKV

GATHERED_BYTES = 2**21
"""Keys gathered at once, unless a single sequence has more: what still lies in a core's cache when it is multiplied."""
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
    """What a layer's groups depend on besides the plan. `page_bytes`: keys of one page in the queries' type."""

    num_kv_heads: int
    page_bytes: int
    window: int
    can_fuse: bool
    fewest_fused_rows: int
    num_shared: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences attended together: each has `num_queries` queries and as many gathered pages.

    blocks   [sequences * kv_heads * pages] int64, which (page, head) blocks to gather
    tokens   [sequences * queries] int64, the group's flat rows; None for all of the step's, in order
    hidden   [sequences, 1, 1, queries, positions] bool, what a query must not see; None where it sees everything
    added    [1, 1, queries * shared heads, positions], -inf where hidden, where a few queries are attended fused
    stale    the gathered positions of each sequence that no token was written to, as (first, end)
    visible  the gathered positions to look at: all of them, or exactly the sequence's where attention is fused
    """

    num_sequences: int
    num_queries: int
    blocks: Tensor
    tokens: Tensor | None
    hidden: Tensor | None
    added: Tensor | None
    stale: tuple[tuple[int, int], ...]
    visible: slice
    is_fused: bool
    is_whole: bool
    """A single sequence whose queries are all of its positions: plainly causal."""
    is_long: bool
    """More queries than a speculative step has: their heads are not laid out as rows."""
    only_page: int | None
    """The page that everything lies in, which is read where it is."""


def _attend(q: Tensor, kv: PagedKV, group: _Group, *, scale: float, softcap: float) -> Tensor:
    """[sequences * queries, heads, head_dim] of one group, in its order; same shape out."""
    keys, values = _gathered(kv.keys, group, q.dtype), _gathered(kv.values, group, q.dtype)
    if group.is_fused and not group.is_long:
        return _fused(q, keys, values, group, scale)
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = kv.keys.shape[1]
    num_shared = num_heads // num_kv_heads
    # [B, kv_heads, shared, queries, D]
    rows = q.view(group.num_sequences, group.num_queries, num_kv_heads, num_shared, head_dim).permute(0, 2, 3, 1, 4)
    if group.is_fused:
        out = _fused_long(rows[0], keys, values, group, scale)
    else:
        _clear_stale(values, group)
        out = _batched(rows, keys, values, kv, group, scale=scale, softcap=softcap)
    return out.permute(0, 3, 1, 2, 4).reshape(q.shape).contiguous()


def _fused(q: Tensor, keys: Tensor, values: Tensor, group: _Group, scale: float) -> Tensor:
    """[queries, heads, D] of a single sequence over its [kv_heads, positions, D]; shaped as `q`, contiguous.

    Queries and the heads that share a KV head are its rows: half the time of expanding the keys to them.
    """
    num_queries, _, head_dim = q.shape
    num_kv_heads = keys.shape[0]
    if num_queries == 1:
        rows = q.view(1, num_kv_heads, -1, head_dim)
    else:
        rows = q.view(num_queries, num_kv_heads, -1, head_dim).transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    out = functional.scaled_dot_product_attention(
        rows, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=group.added, scale=scale
    )
    if num_queries > 1:
        out = out.view(num_kv_heads, num_queries, -1, head_dim).transpose(0, 1)
    return out.reshape(q.shape)


def _fused_long(rows: Tensor, keys: Tensor, values: Tensor, group: _Group, scale: float) -> Tensor:
    """[kv_heads, shared, queries, D] over [kv_heads, positions, D] of a single sequence -> [1, like rows]."""
    num_kv_heads, num_shared, _, head_dim = rows.shape
    shape = (num_kv_heads, num_shared, -1, head_dim)
    hidden = None if group.is_whole or group.hidden is None else ~group.hidden[0, 0, 0]
    out = functional.scaled_dot_product_attention(
        rows,
        keys.unsqueeze(1).expand(shape),
        values.unsqueeze(1).expand(shape),
        attn_mask=hidden,
        is_causal=group.is_whole,
        scale=scale,
    )
    return out.unsqueeze(0)


def _batched(
    rows: Tensor, keys: Tensor, values: Tensor, kv: PagedKV, group: _Group, *, scale: float, softcap: float
) -> Tensor:
    """[B, kv_heads, shared, queries, D] over [B * kv_heads, positions, D] -> shaped as `rows`."""
    flat = rows.reshape(keys.shape[0], -1, rows.shape[4])
    scores = torch.bmm(flat * scale, keys.transpose(1, 2))
    if kv.key_scales is not None:
        scores.mul_(_gathered_scales(kv.key_scales, group, scores.dtype))
    if softcap:
        scores.div_(softcap).tanh_().mul_(softcap)
    if group.hidden is not None:
        # Filled, not added to: a slot that was never written may hold a NaN.
        scores.view(*rows.shape[:4], -1).masked_fill_(group.hidden, -torch.inf)
    weights = scores.softmax(-1)
    if kv.value_scales is not None:
        value_scales = _gathered_scales(kv.value_scales, group, weights.dtype)
        _clear_stale(value_scales.transpose(1, 2), group)
        weights.mul_(value_scales)
    return torch.bmm(weights, values).view(rows.shape)


def _gathered(pages: Tensor, group: _Group, dtype: torch.dtype) -> Tensor:
    """The group's blocks of [pages, kv_heads, PAGE_SIZE, D] as [B * kv_heads, positions, D] in `dtype`."""
    _, num_kv_heads, _, head_dim = pages.shape
    if group.only_page is not None:
        return pages[group.only_page, :, group.visible]
    blocks = pages.view(-1, PAGE_SIZE * head_dim)
    if pages.dtype == torch.float8_e4m3fn:
        # Gathering is not implemented for float8; the bytes are the same.
        taken = blocks.view(torch.uint8).index_select(0, group.blocks).view(pages.dtype)
    else:
        taken = blocks.index_select(0, group.blocks)
    taken = taken.to(dtype).view(group.num_sequences * num_kv_heads, -1, head_dim)
    return taken[:, group.visible] if group.is_fused else taken


def _gathered_scales(scales: Tensor, group: _Group, dtype: torch.dtype) -> Tensor:
    """The group's scales of [pages, kv_heads, PAGE_SIZE] as [B * kv_heads, 1, positions] in `dtype`."""
    num_kv_heads = scales.shape[1]
    taken = scales.view(-1, PAGE_SIZE).index_select(0, group.blocks).to(dtype)
    return taken.view(group.num_sequences * num_kv_heads, 1, -1)


def _clear_stale(gathered: Tensor, group: _Group) -> None:
    """Zeros the unwritten positions of [B * kv_heads, positions, n] in place: a weight of 0 does not undo a NaN."""
    if group.stale:
        by_sequence = gathered.view(group.num_sequences, -1, *gathered.shape[1:])
        for sequence, (first, end) in enumerate(group.stale):
            by_sequence[sequence, :, first:end].zero_()


def _groups(q: Tensor, kv: PagedKV, plan: AttentionPlan, window: int, softcap: float) -> list[_Group]:
    """The step's groups, from the plan where an earlier layer left them there."""
    is_quantized = kv.key_scales is not None
    key = ("paged_attention_reference", q.shape, q.dtype, kv.keys.shape, is_quantized, window, not softcap)
    groups = plan.derived.get(key)
    if groups is None:
        _, num_kv_heads, _, head_dim = kv.keys.shape
        form = _Form(
            num_kv_heads=num_kv_heads,
            page_bytes=num_kv_heads * PAGE_SIZE * head_dim * q.element_size(),
            window=window,
            can_fuse=not is_quantized and not softcap,
            # One query row a head is where fused attention is slow in the half types: 188 us against 106 for 12 heads
            # of 64 at 100 positions, 763 against 216 at 500.
            fewest_fused_rows=1 if q.dtype == torch.float32 else 2,
            num_shared=q.shape[1] // num_kv_heads,
            dtype=q.dtype,
        )
        groups = plan.derived[key] = _make_groups(plan, form)
    return cast("list[_Group]", groups)


def _make_groups(plan: AttentionPlan, form: _Form) -> list[_Group]:
    starts, lengths = plan.query_starts.tolist(), plan.kv_lengths.tolist()
    alike: dict[tuple[int, int, int], list[_Member]] = {}
    for sequence, (start, end, length) in enumerate(zip(starts, starts[1:], lengths, strict=False)):
        num_queries = end - start
        if not length or not num_queries:
            continue
        earliest = max(0, length - num_queries - form.window + 1) if form.window else 0
        first_page, end_page = earliest // PAGE_SIZE, -(-length // PAGE_SIZE)
        alone = sequence if num_queries > MAX_BATCHED_QUERIES else -1
        # Padding a sequence to the longest of its group at most doubles it.
        key = (num_queries, (end_page - first_page).bit_length(), alone)
        alike.setdefault(key, []).append(_Member(sequence, start, num_queries, length, earliest, first_page, end_page))
    groups: list[_Group] = []
    for members in alike.values():
        widest = max(member.end_page - member.first_page for member in members)
        at_once = max(1, GATHERED_BYTES // (widest * form.page_bytes))
        parts = [members[first : first + at_once] for first in range(0, len(members), at_once)]
        groups += [_make_group(part, plan.page_table, starts[-1], form) for part in parts]
    return groups


@dataclass(frozen=True, slots=True)
class _Member:
    """One sequence of a group; positions count from the sequence's start."""

    sequence: int
    start: int
    num_queries: int
    length: int
    earliest: int
    first_page: int
    end_page: int

    @property
    def stale(self) -> tuple[int, int]:
        """The unwritten positions of its last page, counted from the first page gathered."""
        base = self.first_page * PAGE_SIZE
        return self.length - base, self.end_page * PAGE_SIZE - base


def _make_group(members: Sequence[_Member], page_table: Tensor, num_tokens: int, form: _Form) -> _Group:
    first, num_kv_heads = members[0], form.num_kv_heads
    num_queries = first.num_queries
    is_fused = len(members) == 1 and form.can_fuse and form.num_shared * num_queries >= form.fewest_fused_rows
    width = max(member.end_page - member.first_page for member in members)
    blocks: list[int] = []
    for member in members:
        pages = page_table[member.sequence, member.first_page : member.end_page].tolist()
        # Filled up with a page of its own, so that a neighbour's numbers cannot reach it.
        pages += pages[:1] * (width - len(pages))
        blocks += [page * num_kv_heads + head for head in range(num_kv_heads) for page in pages]
    tokens = [token for member in members for token in range(member.start, member.start + num_queries)]
    base = first.first_page * PAGE_SIZE
    visible = slice(first.earliest - base, first.length - base) if is_fused else slice(0, width * PAGE_SIZE)
    is_long = num_queries > MAX_BATCHED_QUERIES
    is_seeing_all = is_fused and num_queries == 1
    hidden = None if is_seeing_all else _hidden(members, visible, form.window, page_table.device)
    added = None
    if is_fused and not is_long and hidden is not None:
        seen = torch.zeros(hidden.shape[3:], dtype=form.dtype, device=page_table.device)
        added = seen.masked_fill_(hidden[0, 0, 0], -torch.inf).repeat_interleave(form.num_shared, dim=0)[None, None]
    return _Group(
        num_sequences=len(members),
        num_queries=num_queries,
        blocks=torch.tensor(blocks, device=page_table.device),
        tokens=None if tokens == list(range(num_tokens)) else torch.tensor(tokens, device=page_table.device),
        hidden=hidden,
        added=added,
        stale=() if is_fused else tuple(member.stale for member in members),
        visible=visible,
        is_fused=is_fused,
        is_whole=is_fused and num_queries == first.length and (not form.window or form.window >= first.length),
        is_long=is_long,
        only_page=blocks[0] // num_kv_heads if is_fused and width == 1 else None,
    )


def _hidden(members: Sequence[_Member], visible: slice, window: int, device: torch.device) -> Tensor:
    """What each query must not see of its sequence's gathered positions, [B, 1, 1, queries, positions] bool."""
    bases = torch.tensor([[member.first_page * PAGE_SIZE] for member in members], device=device)
    lengths = torch.tensor([[member.length] for member in members], device=device)
    num_queries = members[0].num_queries
    positions = torch.arange(visible.start, visible.stop, device=device) + bases
    own = lengths - num_queries + torch.arange(num_queries, device=device)
    back = own.unsqueeze(2) - positions.unsqueeze(1)
    hidden = back < 0
    if window:
        hidden |= back >= window
    return hidden[:, None, None]
