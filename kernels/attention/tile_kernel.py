"""The inner loop of every attention kernel: a tile of query rows over neighbouring pages of one KV head.

Softmax in one pass (Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022), in powers of two. Quantized keys
and values are never written out in full: their scales multiply scores and weights. The ids of the pages come in a
register, because a load that waits for another load of its own turn would not be fetched ahead.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803, N806

from __future__ import annotations

from torch import Tensor

from kernels.attention.plan import AttentionPlan
from kernels.jit import jit, tl
from kernels.paging import PAGE_SIZE, PagedKV

PAGE = tl.constexpr(PAGE_SIZE)
LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)


def attend_arguments(q: Tensor, kv: PagedKV, plan: AttentionPlan, *, scale: float, softcap: float) -> dict[str, object]:
    """What every attention kernel is given, by the names it has there.

    Products of q and k times `factor` become scores in powers of two; with a soft cap, cap * tanh(x) is
    cap - 2 * cap / (1 + e^2x).
    """
    head_dim, scales = q.shape[2], kv.key_scales
    return {
        "q": q,
        "keys": kv.keys,
        "values": kv.values,
        "key_scales": scales,
        "value_scales": kv.value_scales,
        "page_table": plan.page_table,
        "query_starts": plan.query_starts,
        "q_stride": q.stride(0),
        "page_stride": kv.keys.stride(0),
        "head_stride": kv.keys.stride(1),
        "scale_page_stride": 0 if scales is None else scales.stride(0),
        "scale_head_stride": 0 if scales is None else scales.stride(1),
        "table_stride": plan.page_table.stride(0),
        "factor": 2 * LOG2_E * scale / softcap if softcap else LOG2_E * scale,
        "cap": LOG2_E * softcap,
        "HEAD_DIM": head_dim,
        "BLOCK_D": padded(head_dim),
        "GROUP": q.shape[1] // kv.keys.shape[1],
        "HAS_CAP": softcap > 0,
    }


def padded(extent: int) -> int:
    """The power of two that holds it, 16 or more, which is what matrix units take."""
    return max(16, 1 << (extent - 1).bit_length())


@jit()
def attend_pages(
    q: tl.tensor,
    positions: tl.tensor,
    peak: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    pages: tl.tensor,
    base: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    length: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    page_stride: tl.tensor,
    scale_stride: tl.tensor,
    factor: tl.tensor,
    cap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
) -> tl.tensor:
    """Carries (peak, weight, total) of [ROWS], [ROWS], [ROWS, D] on over pages `first`..`end` of `pages`.

    q [ROWS, D], D a power of two, zeros beyond HEAD_DIM; `positions` [ROWS], where a row's query sits, -1 for a row
    that sees nothing; pages[0] begins at position `base`; nothing was written from position `length` on. `IS_MASKED`
    False: every row sees every page. Pointers are those of the KV head.
    """
    NUM_PAGES: tl.constexpr = pages.shape[0]
    D: tl.constexpr = q.shape[1]
    numbers = tl.arange(0, NUM_PAGES)
    slots = tl.arange(0, PAGE)
    dims = tl.arange(0, D)
    is_head = dims < HEAD_DIM
    block = slots[:, None] * HEAD_DIM + dims[None, :]
    # Few rows take their values to the matrix units from registers, many from shared memory, where any will do.
    IN_PAIRS: tl.constexpr = key_scales is not None and q.shape[0] < 64
    if IN_PAIRS:
        pairs = values.to(tl.pointer_type(tl.int16), bitcast=True)
        pair_dims = tl.arange(0, D // 2)
        is_pair = pair_dims < HEAD_DIM // 2
        pair_block = slots[:, None] * (HEAD_DIM // 2) + pair_dims[None, :]
    if key_scales is not None:
        page = tl.sum(tl.where(numbers == first, pages, 0)).to(tl.int64)
        is_written = base + first * PAGE + slots < length
        next_key_scale = tl.load(key_scales + page * scale_stride + slots, mask=is_written, other=0.0)
        next_value_scale = tl.load(value_scales + page * scale_stride + slots, mask=is_written, other=0.0)
    for number in tl.range(first, end):
        page = tl.sum(tl.where(numbers == number, pages, 0)).to(tl.int64)
        at = base + number * PAGE + slots
        is_written = at < length
        k = _load_page(keys + page * page_stride + block, is_written, is_head, False, HEAD_DIM < D)
        scores = tl.dot(q, tl.trans(_widened(k, q)), input_precision="ieee")
        if key_scales is not None:
            # Too small to be copied in the background, so they are asked for a turn ahead by hand.
            key_scale, value_scale = next_key_scale, next_value_scale
            next_page = tl.sum(tl.where(numbers == number + 1, pages, 0)).to(tl.int64)
            is_next = (at + PAGE < length) & (number + 1 < end)
            next_key_scale = tl.load(key_scales + next_page * scale_stride + slots, mask=is_next, other=0.0)
            next_value_scale = tl.load(value_scales + next_page * scale_stride + slots, mask=is_next, other=0.0)
            scores *= (key_scale.to(tl.float32) * factor)[None, :]
        else:
            scores *= factor
        if HAS_CAP:
            scores = cap - 2 * cap / (1 + tl.exp2(scores))
        if IS_MASKED:
            is_seen = at[None, :] <= positions[:, None]
            if WINDOW:
                is_seen &= at[None, :] > positions[:, None] - WINDOW
            scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet keeps a finite reference, or its weights would be NaN.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - reference[:, None])
        fade = tl.exp2(peak - reference)
        weight = weight * fade + tl.sum(weights, 1)
        if key_scales is not None:
            weights *= value_scale.to(tl.float32)[None, :]
        # Times a scale, weights beside that of an outstanding key would be too small for half precision.
        narrow: tl.constexpr = tl.bfloat16 if key_scales is not None and q.dtype == tl.float16 else q.dtype
        weights = weights.to(narrow)
        # Loaded here and not beside the keys: int8 values, widened early, cost 66 registers more. Stale values may be
        # NaN, which a weight of zero does not undo; stale scores are masked.
        if IN_PAIRS:
            places = pairs + page * (page_stride // 2) + pair_block
            v = _widened_pairs(_load_page(places, is_written, is_pair, IS_MASKED, HEAD_DIM < D), k, weights)
        else:
            v = _load_page(values + page * page_stride + block, is_written, is_head, IS_MASKED, HEAD_DIM < D)
            v = _widened(v, weights)
        total = tl.dot(weights, v, total * fade[:, None], input_precision="ieee")
        peak = higher
    return peak, weight, total


@jit()
def _widened(x: tl.tensor, like: tl.tensor) -> tl.tensor:
    """Stored numbers in the type of `like`. e4m3 fits into half precision, to which there is an instruction."""
    if x.dtype == tl.float8e4nv:
        return x.to(tl.float16).to(like.dtype)
    else:
        return x.to(like.dtype)


@jit()
def _widened_pairs(pairs: tl.tensor, stored: tl.tensor, like: tl.tensor) -> tl.tensor:
    """Numbers of the type of `stored` that lie in pairs [PAGE, D / 2] int16, as [PAGE, D] in the type of `like`.

    Joined, they are widened where they were loaded and go to the matrix units by way of shared memory. Matrix units
    want values by the column, for which there is an instruction in 16 bits and not in 8: byte by byte it took as long
    as reading twice as much.
    """
    low = (pairs & 0xFF).to(tl.uint8).to(stored.dtype, bitcast=True)
    high = ((pairs >> 8) & 0xFF).to(tl.uint8).to(stored.dtype, bitcast=True)
    widened = tl.join(_widened(low, like), _widened(high, like))
    return tl.reshape(widened, [pairs.shape[0], 2 * pairs.shape[1]])


@jit()
def averaged(weight: tl.tensor, total: tl.tensor) -> tl.tensor:
    """The attention [ROWS, D] of what was carried; zeros for rows that saw nothing."""
    return total / tl.where(weight == 0.0, 1.0, weight)[:, None]


@jit()
def log_weight(peak: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """log2 of the sum of 2^score [ROWS]; -inf for rows that saw nothing."""
    return tl.where(weight == 0.0, float("-inf"), peak + tl.log2(tl.where(weight == 0.0, 1.0, weight)))


@jit()
def _load_page(
    block: tl.tensor, is_row: tl.tensor, is_head: tl.tensor, BY_ROW: tl.constexpr, BY_HEAD: tl.constexpr
) -> tl.tensor:
    """A page of one head [PAGE, D], zeros where masked; masks that hold everywhere are left out of the machine code."""
    if BY_ROW and BY_HEAD:
        return tl.load(block, mask=is_row[:, None] & is_head[None, :], other=0.0)
    elif BY_ROW:
        return tl.load(block, mask=is_row[:, None], other=0.0)
    elif BY_HEAD:
        return tl.load(block, mask=is_head[None, :], other=0.0)
    else:
        return tl.load(block)
