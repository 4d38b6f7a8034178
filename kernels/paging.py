"""The vocabulary of paged attention: where keys and values lie, and which of them a step reads.

A page holds 64 tokens of every KV head of one layer. One (page, head) is one contiguous block, so a kernel needs
one page id a tile.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.attention.shared_prefix import SharedPrefixes

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
class AttentionPlan:
    """Which queries see which pages; built once a step, read by every layer.

    The step's tokens lie one sequence after the other; sequence b has the flat rows
    query_starts[b]..query_starts[b+1], which are its last tokens: row i of its n sits at position
    kv_lengths[b] - n + i and sees the positions up to its own.

        page_table    [sequences, max pages] int32, filled up with 0
        query_starts  [sequences + 1] int32
        kv_lengths    [sequences] int32, this step's tokens included; 0 for a padded row of a captured graph

        shared        which sequences begin alike, where that is worth knowing; no result depends on it

    `max_query` and `max_kv` are host numbers, so that no launcher has to wait for the device. `derived` holds what an
    implementation worked out from the plan in the step's first layer and reads again in the others, so tensors that
    are written anew need a new plan. `lasting` is the same for what holds in the steps behind this one as well: their
    plans share it as long as every sequence goes on by one token, within its page.
    """

    page_table: Tensor
    query_starts: Tensor
    kv_lengths: Tensor
    max_query: int
    max_kv: int
    shared: SharedPrefixes | None = None
    lasting: dict[Hashable, object] = field(default_factory=dict, repr=False, compare=False)
    derived: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class StorePlan:
    """How far a step's queries and keys are turned, and where its keys and values go.

    Built once a step for all layers that turn alike:

        cos_sin  [tokens, rotary_dim] float32, each token's cosines in the first half and its sines in the second
        slots    [tokens] int64, page * PAGE_SIZE + offset; -1 stores nothing

    `lasting` and `derived` as an AttentionPlan has them.
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
    if dtype not in (torch.int8, torch.float8_e4m3fn):
        return PagedKV(keys, values)
    key_scales, value_scales = (torch.ones(shape[:3], dtype=torch.float16, device=device) for _ in range(2))
    return PagedKV(keys, values, key_scales, value_scales)
