"""Which neighbouring sequences of a step begin with the same pages, in whole splits of the decode kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernels.paging import PAGE_SIZE
from kernels.tuning import SPLIT

_SPLIT_PAGES = SPLIT // PAGE_SIZE


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


def find_shared_prefixes(
    tables: Sequence[Sequence[int]], first_positions: Sequence[int], device: torch.device
) -> SharedPrefixes:
    """Groups of a step whose sequences have these pages, and their first queries at these positions.

    A sequence joins the group before it if it has the group's first split; what they share is then what all have.
    """
    starts, shared = [0], [first_positions[0] // SPLIT if first_positions else 0]
    for number in range(1, len(tables)):
        before, table = tables[number - 1], tables[number]
        most = min(shared[-1], first_positions[number] // SPLIT) * _SPLIT_PAGES
        common = 0
        while common < most and before[common] == table[common]:
            common += 1
        if common >= _SPLIT_PAGES:
            shared[-1] = common // _SPLIT_PAGES
        else:
            starts.append(number)
            shared.append(first_positions[number] // SPLIT)
    starts.append(len(tables))
    sizes = [end - start for start, end in pairwise(starts)]
    # Alone, a sequence has nobody to share with.
    shared = [splits if size > 1 else 0 for size, splits in zip(sizes, shared, strict=True)]
    skipped = [splits for size, splits in zip(sizes, shared, strict=True) for _ in range(size)]
    group_starts, num_shared, skipping = (
        torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (starts, shared, skipped)
    )
    return SharedPrefixes(group_starts, num_shared, skipping, max_members=max(sizes), max_shared=max(shared))
