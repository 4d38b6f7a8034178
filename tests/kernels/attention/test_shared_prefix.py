"""Which sequences are found to begin alike."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.plan import SharedPrefixes
from kernels.attention.shared_prefix import find_shared_prefixes, worthwhile_prefixes
from kernels.paging import PAGE_SIZE
from kernels.tuning import SHARED_POSITIONS, SPLIT

CPU = torch.device("cpu")
PAGES = SPLIT // PAGE_SIZE
"""Pages of a split."""


def found(
    tables: list[list[int]], first_positions: list[int]
) -> tuple[list[int], list[int], list[int], SharedPrefixes]:
    """The groups as lists: starts, shared splits, splits skipped by each sequence."""
    shared = find_shared_prefixes(tables, first_positions, CPU)
    return shared.group_starts.tolist(), shared.num_shared.tolist(), shared.skipped.tolist(), shared


def test_shared_prefix_common_pages_are_counted_in_whole_splits() -> None:
    """Twelve pages in common are one split of eight, and one more sequence that shares less shrinks the group's."""
    common = list(range(1, 25))
    tables = [[*common, 90], [*common, 91], [*common[:12], 92, 93, 94, 95, 96, 97], [50, 51]]

    starts, num_shared, skipped, shared = found(tables, [1537, 1590, 1100, 100])

    assert (starts, num_shared, skipped) == ([0, 3, 4], [1, 0], [1, 1, 1, 0])
    assert (shared.max_members, shared.max_shared) == (3, 1)


def test_shared_prefix_ends_before_the_first_query() -> None:
    """A split that a query lies in is not shared, because not all of it may be seen."""
    table = list(range(1, 20))

    assert found([table, table], [1024, 1023])[1] == [1]
    assert found([table, table], [1024, 1024])[1] == [2]
    assert found([table, table], [511, 600])[1] == [0, 0]


def test_shared_prefix_single_sequence_shares_with_nobody() -> None:
    """Alone, its splits are its own."""
    assert found([list(range(1, 30))], [1700])[:3] == ([0, 1], [0], [0])


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from((1, 2)), min_size=0, max_size=3), st.integers(0, 3 * SPLIT)),
        min_size=1,
        max_size=8,
    )
)
def test_shared_prefix_groups_hold_what_they_promise(sequences: list[tuple[list[int], int]]) -> None:
    """Groups cover all sequences in order; what is shared is the same pages, before every first query."""
    # A sequence is its splits, of which there are two kinds, and pages of its own.
    tables = [
        [page for kind in kinds for page in range(100 * kind, 100 * kind + PAGES)] + [1000 + number] * 40
        for number, (kinds, _) in enumerate(sequences)
    ]
    first_positions = [min(position, len(kinds) * SPLIT + 5) for kinds, position in sequences]

    starts, num_shared, skipped, shared = found(tables, first_positions)

    assert (starts[0], starts[-1]) == (0, len(tables))
    assert shared.max_members == max(end - start for start, end in pairwise(starts))
    assert shared.max_shared == max(num_shared)
    for (start, end), splits in zip(pairwise(starts), num_shared, strict=True):
        assert start < end
        assert skipped[start:end] == [splits] * (end - start)
        assert all(tables[member][: splits * PAGES] == tables[start][: splits * PAGES] for member in range(start, end))
        assert all(first_positions[member] >= splits * SPLIT for member in range(start, end))
        assert splits == 0 or end - start > 1


def test_shared_prefix_of_few_positions_is_not_worthwhile() -> None:
    """Below the limit nothing is handed over, from it on the groups are those that are found anyway."""
    length = 4 * SPLIT
    enough = SHARED_POSITIONS // length + 1
    common = list(range(1, length // PAGE_SIZE + 1))
    tables = [[*common, 1000 + number] for number in range(enough)]
    positions = [length] * enough

    assert worthwhile_prefixes(tables[1:], positions[1:], CPU) is None
    shared = worthwhile_prefixes(tables, positions, CPU)
    assert shared is not None
    assert (shared.group_starts.tolist(), shared.num_shared.tolist()) == ([0, enough], [4])
