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
_RAISED = tl.constexpr(2.0**15)
"""Times a weight of 0 to 1, so that in half precision those of e^-20 keep their digits."""
_LEAST_LOG_SCALE = tl.constexpr(-24)
"""Of a scale in half precision that is not 0."""
_EXPONENT = tl.constexpr(0x7F800000)
_SIGNS = tl.constexpr(0x80808080 - 2**32)
"""Of four numbers of eight bits."""
_UPPER_SIGNS = tl.constexpr(0x80008000 - 2**32)
_FP8_UNIT = tl.constexpr(2.0**8)


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
    IS_QUANTIZED: tl.constexpr = key_scales is not None
    # Few rows take keys and values to the matrix units from registers, many from shared memory, where any will do.
    IN_WORDS: tl.constexpr = IS_QUANTIZED and q.dtype != tl.float32 and q.shape[0] < 64 and HEAD_DIM % 4 == 0
    # Keys are read by the row, in which there is an instruction for e4m3, and none for int8.
    KEYS_IN_WORDS: tl.constexpr = IN_WORDS and keys.dtype.element_ty == tl.int8
    NUM_PAGES: tl.constexpr = pages.shape[0]
    D: tl.constexpr = q.shape[1]
    numbers = tl.arange(0, NUM_PAGES)
    slots = tl.arange(0, PAGE)
    dims = tl.arange(0, D)
    is_head = dims < HEAD_DIM
    block = slots[:, None] * HEAD_DIM + dims[None, :]
    row_factor = factor
    if IS_QUANTIZED:
        if IN_WORDS and q.dtype == tl.bfloat16:
            q, unit = _in_half_precision(q)
            row_factor = (factor * unit)[:, None]
        page = tl.sum(tl.where(numbers == first, pages, 0)).to(tl.int64)
        is_written = base + first * PAGE + slots < length
        next_key_scale = tl.load(key_scales + page * scale_stride + slots, mask=is_written, other=0.0)
        next_value_scale = tl.load(value_scales + page * scale_stride + slots, mask=is_written, other=0.0)
    IN_HALF: tl.constexpr = IS_QUANTIZED and q.dtype == tl.float16
    RAISED: tl.constexpr = _RAISED / _FP8_UNIT if IN_WORDS and keys.dtype.element_ty == tl.float8e4nv else _RAISED
    if IN_HALF:
        total *= RAISED
    if IN_WORDS:
        key_words = keys.to(tl.pointer_type(tl.int32), bitcast=True)
        value_words = values.to(tl.pointer_type(tl.int32), bitcast=True)
        word_dims = tl.arange(0, D // 4)
        is_word = word_dims < HEAD_DIM // 4
        word_block = slots[:, None] * (HEAD_DIM // 4) + word_dims[None, :]
        total = _as_unpacked(total)
        if KEYS_IN_WORDS:
            q = _as_unpacked(q)
    for number in tl.range(first, end):
        page = tl.sum(tl.where(numbers == number, pages, 0)).to(tl.int64)
        at = base + number * PAGE + slots
        is_written = at < length
        if KEYS_IN_WORDS:
            word = key_words + page * (page_stride // 4) + word_block
            k = _unpacked(_load_page(word, is_written, is_word, False, HEAD_DIM < D), keys.dtype.element_ty)
        else:
            k = _widened(_load_page(keys + page * page_stride + block, is_written, is_head, False, HEAD_DIM < D), q)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if IS_QUANTIZED:
            # Too small to be copied in the background, so they are asked for a turn ahead by hand.
            key_scale, value_scale = next_key_scale, next_value_scale
            next_page = tl.sum(tl.where(numbers == number + 1, pages, 0)).to(tl.int64)
            is_next = (at + PAGE < length) & (number + 1 < end)
            next_key_scale = tl.load(key_scales + next_page * scale_stride + slots, mask=is_next, other=0.0)
            next_value_scale = tl.load(value_scales + next_page * scale_stride + slots, mask=is_next, other=0.0)
            scores *= key_scale.to(tl.float32)[None, :] * row_factor
        else:
            scores *= factor
        if HAS_CAP:
            scores = cap - 2 * cap / (1 + tl.exp2(scores))
        if IS_MASKED:
            is_seen = at[None, :] <= positions[:, None]
            if WINDOW:
                is_seen &= at[None, :] > positions[:, None] - WINDOW
            scores = tl.where(is_seen, scores, float("-inf"))
        highest = scores
        if IN_HALF:
            # What a row refers to is the largest of its weights times their values' scales, so that half precision
            # holds all of these.
            highest = scores + _log_bound(value_scale.to(tl.float32))[None, :]
        higher = tl.maximum(peak, tl.max(highest, 1))
        # A row that has seen nothing yet keeps a finite reference, or its weights would be NaN.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - reference[:, None])
        fade = tl.exp2(peak - reference)
        weight = weight * fade + tl.sum(weights, 1)
        if IS_QUANTIZED:
            weights *= value_scale.to(tl.float32)[None, :]
        if IN_HALF:
            weights *= _RAISED
        weights = weights.to(q.dtype)
        # Loaded here and not beside the keys: int8 values, widened early, cost 66 registers more. Stale values may be
        # NaN, which a weight of zero does not undo; stale scores are masked.
        if IN_WORDS:
            word = value_words + page * (page_stride // 4) + word_block
            v = _unpacked(_load_page(word, is_written, is_word, IS_MASKED, HEAD_DIM < D), values.dtype.element_ty)
        else:
            v = _load_page(values + page * page_stride + block, is_written, is_head, IS_MASKED, HEAD_DIM < D)
            v = _widened(v, weights)
        total = tl.dot(weights, v, total * fade[:, None], input_precision="ieee")
        peak = higher
    if IN_WORDS:
        total = _as_unpacked(total)
    if IN_HALF:
        total *= 1 / RAISED
    return peak, weight, total


@jit()
def _log_bound(scale: tl.tensor) -> tl.tensor:
    """What the logarithm to the base of 2 of a scale is below, by less than 1."""
    exponent = (scale.to(tl.int32, bitcast=True) >> 23) - 126
    return tl.maximum(exponent, _LEAST_LOG_SCALE).to(tl.float32)


@jit()
def _in_half_precision(q: tl.tensor) -> tl.tensor:
    """Rows of bfloat16 as float16, each over a power of two [ROWS] near its largest number: nothing is rounded that
    is not far smaller. int8 and e4m3 fit into half precision, and there is an instruction for it.
    """
    wide = q.to(tl.float32)
    largest = tl.max(tl.abs(wide), 1)
    unit = (largest.to(tl.int32, bitcast=True) & _EXPONENT).to(tl.float32, bitcast=True)
    unit = tl.where(unit == 0.0, 1.0, unit)
    return (wide / unit[:, None]).to(tl.float16), unit


@jit()
def _widened(x: tl.tensor, like: tl.tensor) -> tl.tensor:
    """Stored numbers in the type of `like`: by way of half precision, to which there is an instruction from e4m3."""
    if x.dtype == tl.float8e4nv:
        return x.to(tl.float16).to(like.dtype)
    else:
        return x.to(like.dtype)


@jit()
def _unpacked(words: tl.tensor, stored: tl.constexpr) -> tl.tensor:
    """Four numbers of the type `stored` in each of [PAGE, D / 4] int32, as [PAGE, D] in half precision.

    The columns are in the order of `_as_unpacked`, e4m3 over _FP8_UNIT: its digits are moved to where half precision
    has them, whose exponent counts from elsewhere. In bits, 1024 + n is 0x6400 + n, and here n is 128 more than int8.
    Two numbers at a time and without conversions; matrix units want values by the column, for which there is an
    instruction in 16 bits and not in 8, and byte by byte it took as long as reading twice as much.
    """
    if stored == tl.int8:
        raised = words ^ _SIGNS
        even = (raised & 0x00FF00FF) | 0x64006400
        odd = ((raised >> 8) & 0x00FF00FF) | 0x64006400
    else:
        even = ((words << 7) & 0x3F803F80) | ((words << 8) & _UPPER_SIGNS)
        odd = ((words >> 1) & 0x3F803F80) | (words & _UPPER_SIGNS)
    low = tl.join(_half(even), _half(odd))
    high = tl.join(_half(even >> 16), _half(odd >> 16))
    numbers = tl.reshape(tl.join(low, high), [words.shape[0], 4 * words.shape[1]])
    if stored == tl.int8:
        numbers -= tl.full([], 1152.0, tl.float32).to(tl.float16)
    return numbers


@jit()
def _half(bits: tl.tensor) -> tl.tensor:
    """The lower 16 of 32 bits as a number."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True)


@jit()
def _as_unpacked(x: tl.tensor) -> tl.tensor:
    """[ROWS, D] with the second and third of every four columns in each other's place: there and back."""
    fours = tl.reshape(x, [x.shape[0], x.shape[1] // 4, 2, 2])
    return tl.reshape(tl.permute(fours, (0, 1, 3, 2)), x.shape)


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
