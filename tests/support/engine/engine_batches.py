"""Batches for the decoder, built from token lists and page lists, and a run of whole sequences through one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.engine.model.decoder import Decoder
from backends.engine.step.batch import Batch
from kernels.attention.plan import AttentionPlan
from kernels.paging import PAGE_SIZE, PagedKV, allocate_kv


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's share of a step: `tokens` from position `start`, in `pages` that reach at least to their end."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]


def build_batch(parts: Sequence[Part], *, all_rows: bool = False) -> Batch:
    """One step; wanted are each part's last token, or all of them."""
    positions = [torch.arange(part.start, part.start + len(part.tokens)) for part in parts]
    slots = [
        torch.tensor(part.pages)[where // PAGE_SIZE] * PAGE_SIZE + where % PAGE_SIZE
        for part, where in zip(parts, positions, strict=True)
    ]
    sizes = [len(part.tokens) for part in parts]
    starts = torch.tensor([0, *sizes]).cumsum(0)
    lengths = [part.start + len(part.tokens) for part in parts]
    table = torch.zeros(len(parts), max(len(part.pages) for part in parts), dtype=torch.int32)
    for row, part in enumerate(parts):
        table[row, : len(part.pages)] = torch.tensor(part.pages)
    plan = AttentionPlan(
        page_table=table,
        query_starts=starts.to(torch.int32),
        kv_lengths=torch.tensor(lengths, dtype=torch.int32),
        max_query=max(sizes),
        max_kv=max(lengths),
    )
    return Batch(
        token_ids=torch.tensor([token for part in parts for token in part.tokens]),
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        plan=plan,
        rows=torch.arange(int(starts[-1])) if all_rows else starts[1:] - 1,
    )


def shuffled_pages(lengths: Sequence[int], seed: int) -> tuple[list[list[int]], int]:
    """(pages for sequences of these lengths in no order, how many pages there are); some pages stay unused."""
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    num_pages = sum(counts) + 2
    free = list(range(num_pages))
    random.Random(seed).shuffle(free)
    return [[free.pop() for _ in range(count)] for count in counts], num_pages


def poisoned_kv(decoder: Decoder, num_pages: int, *, dtype: torch.dtype | None = None) -> list[PagedKV]:
    """Pages for each layer; those of a floating type are full of NaN, so that a read of an unwritten slot shows."""
    config = decoder.config
    layers = []
    for _ in range(config.num_layers):
        kv = allocate_kv(
            num_pages,
            config.num_kv_heads,
            config.head_dim,
            dtype=dtype or decoder.dtype,
            device=torch.device("cpu"),
        )
        if kv.key_scales is None:
            kv.keys.fill_(float("nan"))
            kv.values.fill_(float("nan"))
        layers.append(kv)
    return layers


def run_sequences(
    decoder: Decoder,
    sequences: Sequence[Sequence[int]],
    *,
    num_decode: int,
    chunk: int,
    seed: int = 0,
    kv_dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Logits [length, vocab] of each sequence, computed together in pages.

    All but the last `num_decode` tokens go in chunks of at most `chunk`, every sequence at its own place in its
    prompt; then one token a step. The longest prompt is still in chunks while the others decode.
    """
    tables, num_pages = shuffled_pages([len(tokens) for tokens in sequences], seed)
    kv = poisoned_kv(decoder, num_pages, dtype=kv_dtype)
    done = [0] * len(sequences)
    logits: list[list[Tensor]] = [[] for _ in sequences]
    while any(count < len(tokens) for count, tokens in zip(done, sequences, strict=True)):
        numbers, parts = [], []
        for number, tokens in enumerate(sequences):
            left = len(tokens) - num_decode - done[number]
            size = min(chunk, left) if left > 0 else min(1, len(tokens) - done[number])
            if size:
                numbers.append(number)
                parts.append(Part(tokens[done[number] : done[number] + size], done[number], tables[number]))
        step = decoder.logits(decoder.forward(build_batch(parts, all_rows=True), kv))
        for number, part, rows in zip(
            numbers, parts, step.split_with_sizes([len(part.tokens) for part in parts]), strict=True
        ):
            logits[number].append(rows)
            done[number] += len(part.tokens)
    return [torch.cat(rows) for rows in logits]
