"""Which queries of a step see which pages, and which of its sequences begin alike: what every layer of it reads."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Groups of neighbouring sequences; every sequence is in one, alone if need be.

        group_starts  [groups + 1] int32; group g is the sequences group_starts[g]..group_starts[g + 1]
        num_shared    [groups] int32, leading splits whose pages the group has in common and which end before the first
                      query of each of its sequences; 0 where it has none
        skipped       [sequences] int32, `num_shared` of each sequence's group

    `max_members` and `max_shared` are host numbers: sequences of the largest group, and the most shared splits.
    """

    group_starts: Tensor
    num_shared: Tensor
    skipped: Tensor
    max_members: int
    max_shared: int


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
