"""Which neighbouring sequences of a step begin with the same pages, in whole splits of the decode kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from kernels.attention.plan import SharedPrefixes
from kernels.paging import PAGE_SIZE
from kernels.tuning import SHARED_POSITIONS, SPLIT

_SPLIT_PAGES = SPLIT // PAGE_SIZE


def find_shared_prefixes(
    tables: Sequence[Sequence[int]], first_positions: Sequence[int], device: torch.device
) -> SharedPrefixes:
    """Groups of a step whose sequences have these pages, and their first queries at these positions.

    A sequence joins the group before it if it has the group's first split; what they share is then what all have.
    """
    return _on_device(*_groups(tables, first_positions), device)


def worthwhile_prefixes(
    tables: Sequence[Sequence[int]], first_positions: Sequence[int], device: torch.device
) -> SharedPrefixes | None:
    """The same, or None where fewer than SHARED_POSITIONS positions would be read once less."""
    sizes, shared = _groups(tables, first_positions)
    spared = sum((size - 1) * splits for size, splits in zip(sizes, shared, strict=True))
    return None if spared * SPLIT < SHARED_POSITIONS else _on_device(sizes, shared, device)


def _groups(tables: Sequence[Sequence[int]], first_positions: Sequence[int]) -> tuple[list[int], list[int]]:
    """Sequences of each group, and the splits they share."""
    sizes, shared = [1], [first_positions[0] // SPLIT if first_positions else 0]
    for number in range(1, len(tables)):
        before, table = tables[number - 1], tables[number]
        most = min(shared[-1], first_positions[number] // SPLIT)
        # From the most on: neighbours mostly share what their group does, or nothing at all.
        common = most if _leading(before, 1) == _leading(table, 1) else 0
        while common and _leading(before, common) != _leading(table, common):
            common -= 1
        if common:
            sizes[-1] += 1
            shared[-1] = common
        else:
            sizes.append(1)
            shared.append(first_positions[number] // SPLIT)
    # Alone, a sequence has nobody to share with.
    return sizes, [splits if size > 1 else 0 for size, splits in zip(sizes, shared, strict=True)]


def _leading(table: Sequence[int], num_splits: int) -> Sequence[int]:
    return table[: num_splits * _SPLIT_PAGES]


def _on_device(sizes: list[int], shared: list[int], device: torch.device) -> SharedPrefixes:
    starts = [0, *accumulate(sizes)]
    skipped = [splits for size, splits in zip(sizes, shared, strict=True) for _ in range(size)]
    group_starts, num_shared, skipping = (
        torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (starts, shared, skipped)
    )
    return SharedPrefixes(group_starts, num_shared, skipping, max_members=max(sizes), max_shared=max(shared))
