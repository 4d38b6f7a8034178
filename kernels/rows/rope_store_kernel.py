"""Queries and keys normed and turned by their position, keys and values rounded and scattered into pages, in one pass.

A program takes a few heads of one token. A head is two halves that turn with each other and, where rotary_dim is less
than head_dim, a rest that does not turn. Torch twin: `rope_store.py`.
"""

# What a kernel is compiled for stands in capitals.
# ruff: noqa: N803, N806

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.checks import MAX_HEAD_DIM, MODEL_DTYPES, KernelInputError, check, check_tensor
from kernels.jit import Launch, jit, launched, tl
from kernels.operation import Op, Result
from kernels.paging import PAGE_SIZE, PagedKV, StorePlan, check_pages
from kernels.rows.rope_cases import rope_store_cases, rope_store_cost
from kernels.rows.rope_store import SMALLEST_SCALE, rope_store_reference
from kernels.rows.row_kernel import block_of, largest_of, rounded, row_stride
from kernels.tuning import HEADS, rope_store_config

_PAGE = tl.constexpr(PAGE_SIZE)
_HEADS = tl.constexpr(HEADS)
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


def prepare_queries(
    qkv: Tensor,
    kv: PagedKV,
    plan: StorePlan,
    *,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> tuple[Tensor, list[Launch]]:
    """Where the queries of `rope_store` will be, and what has to run for it. Raises KernelInputError."""
    (queries, *_), launches = prepare_rope_store(
        qkv, kv, plan, num_heads=num_heads, q_norm=q_norm, k_norm=k_norm, eps=eps, offset=offset
    )
    return queries, launches


rope_store = launched(prepare_queries)
"""The queries [tokens, num_heads, head_dim], contiguous; keys and values are in their slots.

As `kernels.dispatch.RopeStore`. Between norm, rotation and rounding, numbers stay in float32. Raises KernelInputError.
"""


def rope_store_pages_reference(qkv: Tensor, kv: PagedKV, plan: StorePlan, **more: object) -> Result:
    """The twin's queries and the pages it wrote to."""
    if kv.key_scales is not None and kv.value_scales is not None:
        kv = replace(kv, key_scales=kv.key_scales.half(), value_scales=kv.value_scales.half())
    queries = rope_store_reference(qkv, kv, plan, **more)  # type: ignore[arg-type]
    return queries, *_written(kv)


def prepare_rope_store(
    qkv: Tensor,
    kv: PagedKV,
    plan: StorePlan,
    *,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> tuple[tuple[Tensor, ...], list[Launch]]:
    """Where queries, keys, values and their scales will be, and what has to run for it. Raises KernelInputError."""
    _check(qkv, kv, plan, num_heads, (q_norm, k_norm))
    num_tokens, num_kv_heads, head_dim = qkv.shape[0], kv.keys.shape[1], kv.keys.shape[3]
    queries = qkv.new_empty((num_tokens, num_heads, head_dim))
    if not num_tokens:
        return (queries, *_written(kv)), []
    rotary_dim, scales = plan.cos_sin.shape[1], kv.key_scales
    arguments = {
        "qkv": qkv,
        "cos_sin": plan.cos_sin,
        "slots": plan.slots,
        "q_norm": q_norm,
        "k_norm": k_norm,
        "queries": queries,
        "keys": kv.keys,
        "values": kv.values,
        "key_scales": scales,
        "value_scales": kv.value_scales,
        "qkv_stride": row_stride(qkv),
        "cos_sin_stride": row_stride(plan.cos_sin),
        "page_stride": kv.keys.stride(0),
        "head_stride": kv.keys.stride(1),
        "scale_page_stride": 0 if scales is None else scales.stride(0),
        "scale_head_stride": 0 if scales is None else scales.stride(1),
        "eps": float(eps),
        "offset": float(offset),
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "HALF": rotary_dim // 2,
        "BLOCK_HALF": block_of(rotary_dim // 2),
        "BLOCK_REST": block_of(head_dim - rotary_dim) if rotary_dim < head_dim else 0,
    }
    num_tiles = -(-num_heads // HEADS) + 2 * -(-num_kv_heads // HEADS)
    launch = Launch(_rope_store_kernel, (num_tokens, num_tiles), arguments, rope_store_config(head_dim))
    return (queries, *_written(kv)), [launch]


def _written(kv: PagedKV) -> list[Tensor]:
    return [part for part in (kv.keys, kv.values, kv.key_scales, kv.value_scales) if part is not None]


def _check(
    qkv: Tensor, kv: PagedKV, plan: StorePlan, num_heads: int, norms: tuple[Tensor | None, Tensor | None]
) -> None:
    device, head_dim = qkv.device, kv.keys.shape[-1]
    check_tensor("qkv", qkv, MODEL_DTYPES, (None, None), device=device, packed=1)
    num_tokens, width = qkv.shape
    check(1 <= head_dim <= MAX_HEAD_DIM, "kv.keys", f"of a head_dim from 1 to {MAX_HEAD_DIM}", head_dim)
    check_pages(kv, qkv.dtype, head_dim, device=device)
    check(num_heads >= 1, "num_heads", "1 or more", num_heads)
    wanted = (num_heads + 2 * kv.keys.shape[1]) * head_dim
    check(width == wanted, "qkv", f"of rows of {wanted} numbers, queries, keys and values", width)
    check_tensor("plan.cos_sin", plan.cos_sin, (torch.float32,), (num_tokens, None), device=device, packed=1)
    rotary_dim = plan.cos_sin.shape[1]
    is_right = rotary_dim % 2 == 0 and 2 <= rotary_dim <= head_dim
    check(is_right, "plan.cos_sin", f"of rows of an even number from 2 to {head_dim}", rotary_dim)
    check_tensor("plan.slots", plan.slots, (torch.int64,), (num_tokens,), device=device)
    for argument, norm, other in zip(("q_norm", "k_norm"), norms, reversed(norms), strict=True):
        if norm is not None:
            check_tensor(argument, norm, MODEL_DTYPES, (head_dim,), device=device)
        elif other is not None:
            raise KernelInputError(argument, "given, as the other's norm is", None)
    if device.type == "cpu" and num_tokens:
        lowest, highest = (int(bound) for bound in plan.slots.aminmax())
        num_slots = kv.keys.shape[0] * PAGE_SIZE
        check(lowest >= -1, "plan.slots", "of slots from 0 on, or -1 for none", lowest)
        check(highest < num_slots, "plan.slots", f"of slots below {num_slots}", highest)


@jit()
def _loaded(
    row: tl.tensor,
    heads: tl.tensor,
    is_head: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """(first half, second half, rest) of some heads of a row, float32 [_HEADS, BLOCK]; no rest is the first again."""
    dims = tl.arange(0, BLOCK_HALF)
    mask = is_head[:, None] & (dims < HALF)[None, :]
    places = row + heads[:, None] * HEAD_DIM + dims[None, :]
    first = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=mask, other=0.0).to(tl.float32)
    rest = first
    if BLOCK_REST:
        dims = 2 * HALF + tl.arange(0, BLOCK_REST)
        mask = is_head[:, None] & (dims < HEAD_DIM)[None, :]
        rest = tl.load(row + heads[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    return first, second, rest


@jit()
def _turned(
    first: tl.tensor,
    second: tl.tensor,
    rest: tl.tensor,
    norm: tl.tensor,
    cos_sin: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The same heads, normed where `norm` is an address, and turned."""
    dims = tl.arange(0, BLOCK_HALF)
    is_dim = dims < HALF
    if norm is not None:
        square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if BLOCK_REST:
            square += tl.sum(rest * rest, 1)
        share = tl.rsqrt(square / HEAD_DIM + eps)[:, None]
        first *= share * (tl.load(norm + dims, mask=is_dim, other=0.0).to(tl.float32) + offset)[None, :]
        second *= share * (tl.load(norm + HALF + dims, mask=is_dim, other=0.0).to(tl.float32) + offset)[None, :]
        if BLOCK_REST:
            others = 2 * HALF + tl.arange(0, BLOCK_REST)
            factor = tl.load(norm + others, mask=others < HEAD_DIM, other=0.0).to(tl.float32) + offset
            rest *= share * factor[None, :]
    cos = tl.load(cos_sin + dims, mask=is_dim, other=0.0)[None, :]
    sin = tl.load(cos_sin + HALF + dims, mask=is_dim, other=0.0)[None, :]
    return first * cos - second * sin, second * cos + first * sin, rest


@jit()
def _store(
    first: tl.tensor,
    second: tl.tensor,
    rest: tl.tensor,
    out: tl.tensor,
    places: tl.tensor,
    scales: tl.tensor,
    scale_places: tl.tensor,
    is_head: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> None:
    """Heads to `places` [_HEADS] of `out`; quantized, with their scales to `scale_places`, where there are scales."""
    if scales is not None:
        largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        if BLOCK_REST:
            largest = tl.maximum(largest, tl.max(tl.abs(rest), 1))
        dtype: tl.constexpr = out.dtype.element_ty
        value = tl.maximum(largest / largest_of(dtype), _SMALLEST_SCALE).to(tl.float16)
        tl.store(scales + scale_places, value, mask=is_head)
        # Divided by the scale as it was rounded, which is what the reader will multiply with.
        value = value.to(tl.float32)[:, None]
        first, second, rest = (
            rounded(first / value, dtype),
            rounded(second / value, dtype),
            rounded(rest / value, dtype),
        )
    dims = tl.arange(0, BLOCK_HALF)
    mask = is_head[:, None] & (dims < HALF)[None, :]
    out += places[:, None]
    tl.store(out + dims[None, :], first.to(out.dtype.element_ty), mask=mask)
    tl.store(out + HALF + dims[None, :], second.to(out.dtype.element_ty), mask=mask)
    if BLOCK_REST:
        dims = 2 * HALF + tl.arange(0, BLOCK_REST)
        mask = is_head[:, None] & (dims < HEAD_DIM)[None, :]
        tl.store(out + dims[None, :], rest.to(out.dtype.element_ty), mask=mask)


@jit(varying=("slots",))
def _rope_store_kernel(
    qkv: tl.tensor,
    cos_sin: tl.tensor,
    slots: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    qkv_stride: int,
    cos_sin_stride: int,
    page_stride: int,
    head_stride: int,
    scale_page_stride: int,
    scale_head_stride: int,
    eps: float,
    offset: float,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> None:
    """Program (token, tile): _HEADS heads; the first tiles are of queries, then come keys, then values."""
    QUERY_TILES: tl.constexpr = (NUM_HEADS + _HEADS - 1) // _HEADS
    KV_TILES: tl.constexpr = (NUM_KV_HEADS + _HEADS - 1) // _HEADS
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    numbers = tl.arange(0, _HEADS)
    qkv += token * qkv_stride
    cos_sin += token * cos_sin_stride
    if tile < QUERY_TILES:
        heads = tile * _HEADS + numbers
        is_head = heads < NUM_HEADS
        first, second, rest = _loaded(qkv, heads, is_head, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST)
        first, second, rest = _turned(
            first, second, rest, q_norm, cos_sin, eps, offset, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST
        )
        places = (token * NUM_HEADS + heads) * HEAD_DIM
        _store(first, second, rest, queries, places, None, places, is_head, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            heads = (tile - QUERY_TILES) % KV_TILES * _HEADS + numbers
            is_head = heads < NUM_KV_HEADS
            page, place = slot // _PAGE, slot % _PAGE
            places = page * page_stride + heads.to(tl.int64) * head_stride + place * HEAD_DIM
            scale_places = page * scale_page_stride + heads.to(tl.int64) * scale_head_stride + place
            if tile < QUERY_TILES + KV_TILES:
                first, second, rest = _loaded(qkv, NUM_HEADS + heads, is_head, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST)
                first, second, rest = _turned(
                    first, second, rest, k_norm, cos_sin, eps, offset, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST
                )
                _store(
                    first,
                    second,
                    rest,
                    keys,
                    places,
                    key_scales,
                    scale_places,
                    is_head,
                    HEAD_DIM,
                    HALF,
                    BLOCK_HALF,
                    BLOCK_REST,
                )
            else:
                heads += NUM_HEADS + NUM_KV_HEADS
                first, second, rest = _loaded(qkv, heads, is_head, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST)
                _store(
                    first,
                    second,
                    rest,
                    values,
                    places,
                    value_scales,
                    scale_places,
                    is_head,
                    HEAD_DIM,
                    HALF,
                    BLOCK_HALF,
                    BLOCK_REST,
                )


OP = Op(
    name="rope_store",
    launch=launched(prepare_rope_store),
    prepare=prepare_rope_store,
    reference=rope_store_pages_reference,
    cases=rope_store_cases,
    cost=rope_store_cost,
)
