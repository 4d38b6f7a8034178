"""The ranks of one divided model, and what passes between their devices: sums of tensors, and the batches of steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from backends.engine.step.batch import Batch
from kernels.attention.plan import AttentionPlan

LOOPBACK = "127.0.0.1"
PATIENCE = timedelta(seconds=60)
"""How long a rank waits for the others, at the beginning and within a step."""


class RankGroup:
    """Rank `rank` of `count` on this machine: NCCL between GPUs, gloo between processors.

    `store` is a file that all ranks name and none has written yet. Waits until all of them are there. Raises
    RuntimeError where one does not come; so does every operation where another rank has ended.
    """

    def __init__(self, store: Path, rank: int, count: int, device: torch.device) -> None:
        # Groups of our own, not PyTorch's one for the process: there may be several engines in one.
        kinds: Any = distributed  # PyTorch's types know them in part, and some options have no public name
        shared = kinds.FileStore(str(store), count)
        if device.type == "cuda":
            options = kinds.ProcessGroupNCCL.Options()
            options._timeout = PATIENCE  # noqa: SLF001
            self._group = kinds.ProcessGroupNCCL(shared, rank, count, options)
        else:
            options = kinds.ProcessGroupGloo._Options()  # noqa: SLF001
            options._timeout = PATIENCE  # noqa: SLF001
            options._devices = [kinds.ProcessGroupGloo.create_device(hostname=LOOPBACK)]  # noqa: SLF001
            self._group = kinds.ProcessGroupGloo(shared, rank, count, options)

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors, in place; each rank gets the same bits."""
        self._group.allreduce([tensor]).wait()
        return tensor

    def from_first(self, tensor: Tensor) -> None:
        """Overwrites the tensor with rank 0's."""
        self._group.broadcast([tensor]).wait()

    def abort(self) -> None:
        """Ends what waits for another rank, with an error. From any thread."""
        self._group.abort()


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """What a rank must know to make room for a batch."""

    num_tokens: int
    num_rows: int
    num_sequences: int
    table_width: int
    max_query: int
    max_kv: int

    @classmethod
    def of(cls, batch: Batch) -> BatchSizes:
        """Those of a batch."""
        plan = batch.plan
        num_sequences, table_width = plan.page_table.shape
        return cls(
            num_tokens=batch.token_ids.shape[0],
            num_rows=batch.rows.shape[0],
            num_sequences=num_sequences,
            table_width=table_width,
            max_query=plan.max_query,
            max_kv=plan.max_kv,
        )


def send_batch(group: RankGroup, batch: Batch) -> None:
    """Rank 0's side: the batch to all others, from device to device."""
    plan = batch.plan
    longs = (batch.token_ids, batch.positions, batch.slots, batch.rows)
    ints = (plan.page_table.flatten(), plan.query_starts, plan.kv_lengths)
    group.from_first(torch.cat([*longs, *(tensor.long() for tensor in ints)]))


def receive_batch(group: RankGroup, sizes: BatchSizes, device: torch.device) -> Batch:
    """The other ranks' side."""
    num_tokens, num_sequences = sizes.num_tokens, sizes.num_sequences
    parts = [num_tokens, num_tokens, num_tokens, sizes.num_rows]
    parts += [num_sequences * sizes.table_width, num_sequences + 1, num_sequences]
    flat = torch.empty(sum(parts), dtype=torch.int64, device=device)
    group.from_first(flat)
    token_ids, positions, slots, rows, table, starts, lengths = flat.split_with_sizes(parts)
    plan = AttentionPlan(
        page_table=table.int().view(num_sequences, sizes.table_width),
        query_starts=starts.int(),
        kv_lengths=lengths.int(),
        max_query=sizes.max_query,
        max_kv=sizes.max_kv,
    )
    return Batch(token_ids, positions, slots, plan, rows)
