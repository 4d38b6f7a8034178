"""Queries and keys normed and turned by their position, keys and values into their pages, in one pass.

Rotary embedding of Su et al., 2021, in the half-split form: number i of a head turns with number i + rotary_dim / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from kernels.paging import PAGE_SIZE, PagedKV, StorePlan

SMALLEST_SCALE = 2.0**-20
"""Floor of a quantized row's scale, so that a row of zeros divides and fp16 still holds the scale to 4 bits."""


def rope_store_reference(
    qkv: Tensor,
    kv: PagedKV,
    plan: StorePlan,
    *,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> Tensor:
    """Optional per-head q/k-norm, rotation, K and V (quantized if the pages are) into their slots.

    `qkv`: [tokens, (num_heads + 2 * kv_heads) * head_dim], queries first; not written to. The first rotary_dim numbers
    of a head turn, in float32. `q_norm`, `k_norm`: [head_dim], both or neither.
    Returns the queries, [tokens, num_heads, head_dim]; each token's heads are contiguous, tokens need not be.
    """
    num_kv_heads, head_dim = kv.keys.shape[1], kv.keys.shape[3]
    num_turning = num_heads + num_kv_heads
    heads = qkv.view(qkv.shape[0], num_turning + num_kv_heads, head_dim)
    turning, values = heads.split_with_sizes((num_turning, num_kv_heads), dim=1)
    if q_norm is not None and k_norm is not None:
        turning = _normed(turning, num_heads, q_norm, k_norm, eps=eps, offset=offset)
    derived = _derived_plan(plan, kv.keys)
    turned = _turned(turning.float(), derived).to(qkv.dtype)
    queries, keys = turned.split_with_sizes((num_heads, num_kv_heads), dim=1)
    _store(keys, kv.keys, kv.key_scales, derived)
    _store(values, kv.values, kv.value_scales, derived)
    return queries


@dataclass(frozen=True, slots=True)
class _DerivedPlan:
    """A plan as every layer needs it.

    cos, sin        [tokens, 1, rotary_dim], for each number of a head; sines are negative in the first half
    num_rows        of the pages as [-1, head_dim], with what may lie between them
    rows            [tokens that are stored, kv_heads] int64, of those
    stored          those tokens, None where it is all of them
    """

    cos: Tensor
    sin: Tensor
    num_rows: int
    rows: Tensor
    stored: Tensor | None


def _derived_plan(plan: StorePlan, pages: Tensor) -> _DerivedPlan:
    """The plan's, from where an earlier layer left them."""
    num_pages, num_kv_heads, page_rows = pages.shape[0], pages.shape[1], pages.stride(0) // pages.stride(2)
    key = (_DerivedPlan, num_pages, num_kv_heads, page_rows)
    derived = plan.derived.get(key)
    if derived is None:
        slots, stored = plan.slots, None
        before = plan.lasting.get(key)
        if before is None:
            # Rows before a slot's own in its head's part of the page, less the slot itself.
            heads = torch.arange(0, num_kv_heads * PAGE_SIZE, PAGE_SIZE, device=slots.device)
            before = (slots // PAGE_SIZE * (page_rows - PAGE_SIZE)).unsqueeze(1) + heads
            if -1 in slots.tolist():
                stored = (slots >= 0).nonzero().squeeze(1)
                slots, before = slots[stored], before[stored]
            else:
                plan.lasting[key] = before
        cos, sin = plan.cos_sin.unsqueeze(1).chunk(2, dim=2)
        derived = plan.derived[key] = _DerivedPlan(
            cos=torch.cat((cos, cos), dim=2),
            sin=torch.cat((-sin, sin), dim=2),
            num_rows=(num_pages - 1) * page_rows + num_kv_heads * PAGE_SIZE,
            rows=cast(Tensor, before) + slots.unsqueeze(1),
            stored=stored,
        )
    return cast(_DerivedPlan, derived)


def _normed(turning: Tensor, num_heads: int, q_norm: Tensor, k_norm: Tensor, *, eps: float, offset: float) -> Tensor:
    """Each head [head_dim] of [tokens, heads, head_dim] over its root mean square, times its kind's weight."""
    if offset:
        turning, q_norm, k_norm = turning.float(), q_norm.float() + offset, k_norm.float() + offset
    normed = functional.rms_norm(turning, turning.shape[2:], None, eps)
    queries, keys = normed.split_with_sizes((num_heads, normed.shape[1] - num_heads), dim=1)
    queries.mul_(q_norm)
    keys.mul_(k_norm)
    return normed


def _turned(x: Tensor, derived: _DerivedPlan) -> Tensor:
    """[tokens, heads, head_dim] float32 with the beginning of each head turned."""
    rotary_dim = derived.cos.shape[2]
    if rotary_dim < x.shape[2]:
        return torch.cat((_turned(x[..., :rotary_dim], derived), x[..., rotary_dim:]), dim=2)
    # With every number's partner in its place, one product and one sum turn all of them.
    return torch.addcmul(x * derived.cos, x.roll(rotary_dim // 2, 2), derived.sin)


def _store(x: Tensor, pages: Tensor, scales: Tensor | None, derived: _DerivedPlan) -> None:
    """[tokens, kv_heads, head_dim] into [pages, kv_heads, PAGE_SIZE, head_dim]."""
    if derived.stored is not None:
        x = x[derived.stored]
    if scales is not None:
        x, row_scales = _quantized(x, pages.dtype)
        _as_rows(scales, derived).index_put_((derived.rows,), row_scales)
        # Scattering is not implemented for float8; the bytes are the same.
        x, pages = x.view(torch.uint8), pages.view(torch.uint8)
    # By one index into rows: two thirds of the time of two, page and offset, into transposed pages.
    _as_rows(pages, derived).index_put_((derived.rows,), x)


def _as_rows(pages: Tensor, derived: _DerivedPlan) -> Tensor:
    """[pages, kv_heads, PAGE_SIZE, ...] as [rows, ...], the same memory; what lies between pages included."""
    return pages.as_strided((derived.num_rows, *pages.shape[3:]), pages.stride()[2:])


def _quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows [..., head_dim] as int8 or float8_e4m3fn, and their float16 scales [...]; row = stored * scale."""
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    scales = (x.abs().amax(-1, keepdim=True).float() / largest).clamp_(min=SMALLEST_SCALE).to(torch.float16)
    # Divided by the scale as it was rounded, which is what the reader will multiply with.
    scaled = (x.float() / scales.float()).clamp_(-largest, largest)
    return (scaled.round_() if dtype == torch.int8 else scaled).to(dtype), scales.squeeze(-1)
