"""Queries and keys normed and turned by their position, keys and values into their pages, in one pass.

Rotary embedding of Su et al., 2021, in the half-split form: number i of a head turns with number i + rotary_dim / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.paging import PAGE_SIZE, PagedKV

SMALLEST_SCALE = 2.0**-20
"""Floor of a quantized row's scale, so that a row of zeros divides and fp16 still holds the scale to 4 bits."""


def rope_store_reference(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    kv: PagedKV,
    slots: Tensor,
    *,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> Tensor:
    """Optional per-head q/k-norm, rotation by position, K and V (quantized if the pages are) into their slots.

    `qkv`: [tokens, (num_heads + 2 * kv_heads) * head_dim], queries first; not written to. `cos_sin`: [max positions,
    rotary_dim] float32, cosines in the first half; the first rotary_dim numbers of a head turn, in float32.
    `positions`, `slots`: [tokens] int64; slot = page * PAGE_SIZE + offset, -1 stores nothing (the twin reads the slots
    on the host). `q_norm`, `k_norm`: [head_dim], both or neither.
    Returns the queries, [tokens, num_heads, head_dim]; each token's heads are contiguous, tokens need not be.
    """
    num_kv_heads, head_dim = kv.keys.shape[1], kv.keys.shape[3]
    num_turning = num_heads + num_kv_heads
    heads = qkv.view(qkv.shape[0], num_turning + num_kv_heads, head_dim)
    turning, values = heads.split_with_sizes((num_turning, num_kv_heads), dim=1)
    if q_norm is not None and k_norm is not None:
        turning = _normed(turning, num_heads, q_norm, k_norm, eps=eps, offset=offset)
    turning = _turned(turning.float(), cos_sin.index_select(0, positions)).to(qkv.dtype)
    queries, keys = turning.split_with_sizes((num_heads, num_kv_heads), dim=1)
    numbers = slots.tolist()
    first, count = (numbers[0], len(numbers)) if numbers else (-1, 0)
    where: _Where
    if 0 < count <= PAGE_SIZE - first % PAGE_SIZE and first >= 0 and numbers == list(range(first, first + count)):
        # One sequence's tokens within a page, as in most steps of a single answer: copying costs half of scattering.
        where = (first // PAGE_SIZE, slice(first % PAGE_SIZE, first % PAGE_SIZE + count))
    else:
        if -1 in numbers:
            kept = slots >= 0
            slots, keys, values = slots[kept], keys[kept], values[kept]
        where = (slots // PAGE_SIZE, slots % PAGE_SIZE)
    _store(keys, kv.keys, kv.key_scales, where)
    _store(values, kv.values, kv.value_scales, where)
    return queries


def _normed(turning: Tensor, num_heads: int, q_norm: Tensor, k_norm: Tensor, *, eps: float, offset: float) -> Tensor:
    """Each head [head_dim] of [tokens, heads, head_dim] over its root mean square, times its kind's weight."""
    if offset:
        turning, q_norm, k_norm = turning.float(), q_norm.float() + offset, k_norm.float() + offset
    normed = functional.rms_norm(turning, turning.shape[2:], None, eps)
    queries, keys = normed.split_with_sizes((num_heads, normed.shape[1] - num_heads), dim=1)
    queries.mul_(q_norm)
    keys.mul_(k_norm)
    return normed


def _turned(x: Tensor, cos_sin: Tensor) -> Tensor:
    """[tokens, heads, head_dim] float32, each head turned by its token's row of `cos_sin` [tokens, rotary_dim]."""
    tokens, heads, head_dim = x.shape
    rotary_dim = cos_sin.shape[1]
    is_partial = rotary_dim < head_dim
    pairs = (x[..., :rotary_dim] if is_partial else x).view(tokens, heads, 2, rotary_dim // 2)
    cos, sin = cos_sin.view(tokens, 1, 2, rotary_dim // 2).unbind(2)
    first, second = pairs.unbind(2)
    turned = pairs * cos.unsqueeze(2)
    turned_first, turned_second = turned.unbind(2)
    turned_first.addcmul_(second, sin, value=-1)
    turned_second.addcmul_(first, sin)
    return torch.cat((turned.flatten(2), x[..., rotary_dim:]), dim=-1) if is_partial else turned.flatten(2)


_Where = tuple[Tensor, Tensor] | tuple[int, slice]
"""(page, offset) of each token, or of all of them where they lie side by side."""


def _store(x: Tensor, pages: Tensor, scales: Tensor | None, where: _Where) -> None:
    """[tokens, kv_heads, head_dim] into [pages, kv_heads, PAGE_SIZE, head_dim] at `where`."""
    if scales is not None:
        x, row_scales = _quantized(x, pages.dtype)
        _put(scales.transpose(1, 2), where, row_scales)
        # Scattering is not implemented for float8; the bytes are the same.
        x, pages = x.view(torch.uint8), pages.view(torch.uint8)
    _put(pages.transpose(1, 2), where, x)


def _put(rows: Tensor, where: _Where, x: Tensor) -> None:
    """`rows[where] = x`, [pages, PAGE_SIZE, ...] at [tokens, ...]."""
    rows[where] = x


def _quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows [..., head_dim] as int8 or float8_e4m3fn, and their float16 scales [...]; row = stored * scale."""
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    scales = (x.abs().amax(-1, keepdim=True).float() / largest).clamp_(min=SMALLEST_SCALE).to(torch.float16)
    # Divided by the scale as it was rounded, which is what the reader will multiply with.
    scaled = (x.float() / scales.float()).clamp_(-largest, largest)
    return (scaled.round_() if dtype == torch.int8 else scaled).to(dtype), scales.squeeze(-1)
