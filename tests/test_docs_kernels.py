"""The page on kernels: its tables are those of the code."""

from __future__ import annotations

from fnmatch import fnmatchcase

from kernels.benchmark.bars import BARS
from kernels.dispatch import op_names
from tests.support.docs import table


def test_docs_kernels_lists_every_operation() -> None:
    """Each operation that has a kernel is described, and no other."""
    assert [row[0].strip("`") for row in table("docs/kernels.md", "operation")] == op_names()


def test_docs_kernels_bars_are_those_of_the_benchmark() -> None:
    """Each bar is in one row, and each row is about a bar."""
    rows = [tuple(cell.strip("`") for cell in row) for row in table("docs/kernels.md", "bar for")]

    told = [
        [row for row in rows if row[0] == bar.op and fnmatchcase(bar.case, row[1]) and row[2] == bar.text]
        for bar in BARS
    ]

    assert [len(found) for found in told] == [1] * len(BARS)
    assert {row for found in told for row in found} == set(rows)
