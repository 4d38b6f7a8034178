"""One step as flat tensors: what the decoder reads. Built by the runner from the scheduler's slices."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.attention.plan import AttentionPlan


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of all sequences of a step, one after the other.

    token_ids, positions, slots  [tokens] int64; a slot is page * PAGE_SIZE + offset, -1 stores nothing
    rows                         [rows] int64, the flat tokens whose hidden states are wanted
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    plan: AttentionPlan
    rows: Tensor
