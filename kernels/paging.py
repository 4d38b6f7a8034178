"""The pages: where keys and values lie, and where a step puts its own.

A page holds 64 tokens of every KV head of one layer. One (page, head) is one contiguous block, so a kernel needs
one page id a tile.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.checks import QUANTIZED_DTYPES, KernelInputError, check, check_tensor

PAGE_SIZE = 64
"""Tokens in a page; also the tile of every attention kernel."""


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of one layer.

    `keys`, `values`: [pages, kv_heads, PAGE_SIZE, head_dim] in the model's type, float8_e4m3fn or int8.
    `key_scales`, `value_scales`: [pages, kv_heads, PAGE_SIZE] float16, one a token and head, where they are quantized;
    value = stored * scale.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StorePlan:
    """How far a step's queries and keys are turned, and where its keys and values go.

    Built once a step for all layers that turn alike:

        cos_sin  [tokens, rotary_dim] float32, each token's cosines in the first half and its sines in the second
        slots    [tokens] int64, page * PAGE_SIZE + offset; -1 stores nothing

    `lasting` and `derived` as an AttentionPlan (`attention/plan.py`) has them.
    """

    cos_sin: Tensor
    slots: Tensor
    lasting: dict[Hashable, object] = field(default_factory=dict, repr=False, compare=False)
    derived: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False, compare=False)


def allocate_kv(
    num_pages: int, num_kv_heads: int, head_dim: int, *, dtype: torch.dtype, device: torch.device
) -> PagedKV:
    """Zeroed pages of one layer; with scales where `dtype` is int8 or float8_e4m3fn."""
    shape = (num_pages, num_kv_heads, PAGE_SIZE, head_dim)
    keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    if dtype not in QUANTIZED_DTYPES:
        return PagedKV(keys, values)
    key_scales, value_scales = (torch.ones(shape[:3], dtype=torch.float16, device=device) for _ in range(2))
    return PagedKV(keys, values, key_scales, value_scales)


def check_pages(kv: PagedKV, dtype: torch.dtype, head_dim: int, *, device: torch.device) -> None:
    """Pages of `dtype`, or quantized ones with their scales; keys and values lie alike. Raises KernelInputError."""
    keys, dtypes = kv.keys, (dtype,) if kv.key_scales is None else QUANTIZED_DTYPES
    check_tensor("kv.keys", keys, dtypes, (None, None, PAGE_SIZE, head_dim), device=device, packed=2)
    check(keys.shape[1] >= 1, "kv.keys", "of one head or more", keys.shape[1])
    check_tensor("kv.values", kv.values, (keys.dtype,), keys.shape, device=device, packed=2)
    check(kv.values.stride() == keys.stride(), "kv.values", f"strided as the keys, {keys.stride()}", kv.values.stride())
    if kv.key_scales is not None or kv.value_scales is not None:
        _check_scales(kv, device)


def _check_scales(kv: PagedKV, device: torch.device) -> None:
    shape = kv.keys.shape[:3]
    for argument, scales in (("kv.key_scales", kv.key_scales), ("kv.value_scales", kv.value_scales)):
        if scales is None:
            raise KernelInputError(argument, "given, as the other's scales are", None)
        check_tensor(argument, scales, (torch.float16,), shape, device=device, packed=1)
    assert kv.key_scales is not None
    assert kv.value_scales is not None
    strides = kv.key_scales.stride()
    check(
        kv.value_scales.stride() == strides,
        "kv.value_scales",
        f"strided as the keys' {strides}",
        kv.value_scales.stride(),
    )
