"""CUDA graphs of decode steps: one token a sequence, for batches of 1, 2, 4, 8 and every 16, replayed as one launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.engine.kv.memory import KVCache
from backends.engine.model.decoder import Decoder
from backends.engine.step.batch import Batch
from kernels.attention.plan import AttentionPlan
from kernels.fallback import Fallbacks
from kernels.paging import PAGE_SIZE

_NO_SLOT = -1


def graph_sizes(most: int) -> list[int]:
    """Batch sizes to capture, so that `most` sequences fit into the largest."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(sizes[-1] * 2 if sizes[-1] < 16 else sizes[-1] + 16)
    return sizes


class TwinsInStep(Exception):
    """Torch twins work in decode steps, for kernels that cannot run here; they look at numbers, which no graph can."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor


class DecodeGraphs:
    """Captures on construction; `most` sequences of up to `max_pages` pages, on one set of buffers.

    A padded row stores nothing and attends to nothing. `fallbacks` are those of the decoder's operations. Raises
    TwinsInStep, and RuntimeError where an operation cannot be captured.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        *,
        most: int,
        max_pages: int,
        device: torch.device,
        fallbacks: Fallbacks,
    ) -> None:
        self._sizes = graph_sizes(most)
        largest = self._sizes[-1]
        longs = torch.zeros(3, largest, dtype=torch.int64, device=device)
        longs[2].fill_(_NO_SLOT)
        self._static = Batch(
            token_ids=longs[0],
            positions=longs[1],
            slots=longs[2],
            plan=AttentionPlan(
                page_table=torch.zeros(largest, max_pages, dtype=torch.int32, device=device),
                query_starts=torch.arange(largest + 1, dtype=torch.int32, device=device),
                kv_lengths=torch.zeros(largest, dtype=torch.int32, device=device),
                max_query=1,
                # The cache may hold less than the model was made for.
                max_kv=min(decoder.max_positions, max_pages * PAGE_SIZE),
            ),
            rows=torch.arange(largest, device=device),
        )
        num_before = fallbacks.num_twin_calls
        for size in self._sizes:
            decoder.logits(decoder.forward(self._first(size), cache.layers))
            if fallbacks.num_twin_calls > num_before:
                raise TwinsInStep
        self._captured: dict[int, _Captured] = {}
        pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(device)
        # The largest first: the smaller ones then fit into its memory.
        for size in reversed(self._sizes):
            graph = torch.cuda.CUDAGraph()
            # A new plan, of which nothing has been worked out yet: all of that belongs into the graph.
            batch = self._first(size)
            # What other threads of the process do with the device meanwhile is their own.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = decoder.logits(decoder.forward(batch, cache.layers))
            self._captured[size] = _Captured(graph, logits)

    def can_run(self, batch: Batch) -> bool:
        """Whether it is one token a sequence, each row wanted, and a graph is large enough; graphs know no sharing."""
        count, plan = batch.token_ids.shape[0], batch.plan
        is_decoding = plan.max_query == 1 and batch.rows.shape[0] == count
        return is_decoding and plan.shared is None and count <= self._sizes[-1]

    def run(self, batch: Batch) -> Tensor:
        """The logits of each sequence, [sequences, vocab_size]; the next replay overwrites them."""
        count = batch.token_ids.shape[0]
        size = next(size for size in self._sizes if size >= count)
        static, plan = self._static, self._static.plan
        for source, target in (
            (batch.token_ids, static.token_ids),
            (batch.positions, static.positions),
            (batch.slots, static.slots),
            (batch.plan.kv_lengths, plan.kv_lengths),
        ):
            target[:count].copy_(source)
        static.slots[count:size].fill_(_NO_SLOT)
        plan.kv_lengths[count:size].zero_()
        plan.page_table[:count, : batch.plan.page_table.shape[1]].copy_(batch.plan.page_table)
        captured = self._captured[size]
        captured.graph.replay()
        return captured.logits[:count]

    def _first(self, size: int) -> Batch:
        """The static batch, cut to its first `size` sequences."""
        static, plan = self._static, self._static.plan
        return Batch(
            static.token_ids[:size],
            static.positions[:size],
            static.slots[:size],
            AttentionPlan(
                plan.page_table[:size],
                plan.query_starts[: size + 1],
                plan.kv_lengths[:size],
                plan.max_query,
                plan.max_kv,
            ),
            static.rows[:size],
        )
