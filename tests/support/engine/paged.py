"""Paged keys and values for the tests: sequences scattered over shuffled pages, and attention worked out plainly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention.plan import AttentionPlan
from kernels.paging import PAGE_SIZE, PagedKV


@dataclass(frozen=True, slots=True)
class PagedStep:
    """A step over random sequences: `keys` and `values` [length, kv_heads, head_dim] are what each one's pages hold."""

    q: Tensor
    kv: PagedKV
    plan: AttentionPlan
    keys: list[Tensor]
    values: list[Tensor]


def paged_step(
    sequences: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    poison: float = math.nan,
) -> PagedStep:
    """Sequences as (queries, length), scattered over shuffled pages whose unused slots hold `poison`."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // PAGE_SIZE) for _, length in sequences]
    # Page 0, which fills tables up, belongs to nobody.
    order = (torch.randperm(sum(counts) + 2, generator=generator) + 1).tolist()
    shape = (len(order) + 1, num_kv_heads, PAGE_SIZE, head_dim)
    kv = PagedKV(torch.full(shape, poison).to(dtype), torch.full(shape, poison).to(dtype))
    table = torch.zeros(len(sequences), max(1, *counts), dtype=torch.int32)
    keys, values = [], []
    for number, (count, (_, length)) in enumerate(zip(counts, sequences, strict=True)):
        pages = [order.pop() for _ in range(count)]
        table[number, :count] = torch.tensor(pages, dtype=torch.int32)
        key, value = (torch.randn(length, num_kv_heads, head_dim, generator=generator).to(dtype) for _ in range(2))
        for position in range(length):
            page, offset = pages[position // PAGE_SIZE], position % PAGE_SIZE
            kv.keys[page, :, offset], kv.values[page, :, offset] = key[position], value[position]
        keys.append(key)
        values.append(value)
    queries = [num_queries for num_queries, _ in sequences]
    starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0).to(torch.int32)
    lengths = torch.tensor([length for _, length in sequences], dtype=torch.int32)
    plan = AttentionPlan(table, starts, lengths, max(queries), int(lengths.max()))
    # Rows of a wider tensor, as the joint projection leaves them.
    wide = torch.randn(int(starts[-1]), num_heads + 1, head_dim, generator=generator).to(dtype)
    return PagedStep(wide[:, :num_heads], kv, plan, keys, values)


def attend_plainly(step: PagedStep, *, scale: float, window: int = 0, softcap: float = 0.0) -> Tensor:
    """The step's attention in float64, query by query, over each sequence's contiguous keys and values."""
    out = torch.zeros(step.q.shape, dtype=torch.float64)
    starts = step.plan.query_starts.tolist()
    for number, (keys, values) in enumerate(zip(step.keys, step.values, strict=True)):
        length, num_queries = keys.shape[0], starts[number + 1] - starts[number]
        if not length:
            continue
        shared = step.q.shape[1] // keys.shape[1]
        keys, values = (x.double().repeat_interleave(shared, dim=1) for x in (keys, values))
        for query in range(num_queries):
            end = length - num_queries + query + 1
            first = max(0, end - window) if window else 0
            row = starts[number] + query
            scores = torch.einsum("hd,nhd->hn", step.q[row].double(), keys[first:end]) * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values[first:end])
    return out
