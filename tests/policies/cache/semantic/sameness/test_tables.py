"""Tables in Markdown as fields."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.parts import parts_of
from policies.cache.semantic.sameness.tables import with_fields

PLANS = """Our plans:

| Plan | **Price** | Export? |
|:-----|:---:|---|
| Basic | 5 euros | no |
| Pro | - | yes |

Cancel at any time."""


def test_each_cell_is_told_with_its_row_and_column() -> None:
    """What stands around the table stays as it is."""
    assert with_fields(PLANS.replace("**", "")).split("\n") == [
        "Our plans:",
        "",
        "Basic, Price: 5 euros.",
        "Basic, Export: no.",
        "Pro, Price: none.",
        "Pro, Export: yes.",
        "",
        "Cancel at any time.",
    ]


def test_values_exchanged_between_rows_are_other_parts() -> None:
    """A row of cells alone would leave them to the order of words."""
    turned = PLANS.replace("Basic", "_").replace("Pro ", "Basic ").replace("_", "Pro")
    one, other = parts_of(PLANS), parts_of(turned)
    assert one is not None
    assert other is not None
    assert set(one.texts) & set(other.texts) == {"Our plans", "Cancel at any time."}


@pytest.mark.parametrize("text", ["| a | b |\nx", "| a |\n|---|\n| b |", "a | b\n--|--\nc | d", "|---|---|\n| c | d |"])
def test_what_is_no_table_stays(text: str) -> None:
    """No head, no rule, one column, no bars at the ends."""
    assert with_fields(text) == text


cells = st.lists(st.text(st.characters(exclude_characters="|\r\n", categories=("L", "N")), min_size=1), min_size=2)


@given(st.lists(cells, min_size=2, max_size=6))
def test_no_cell_of_a_row_is_lost_that_has_a_name(rows: list[list[str]]) -> None:
    """However long its rows are."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    told = with_fields("\n".join([head, f"|{'---|' * len(rows[0])}", *others])).split("\n")
    fields = [(row, name, cell) for row in rows[1:] for name, cell in zip(rows[0][1:], row[1:], strict=False)]
    assert len(told) == len(fields)
    assert all(line == f"{row[0]}, {name}: {cell}." for line, (row, name, cell) in zip(told, fields, strict=True))


@pytest.mark.parametrize(
    "text", ["|" * 4_800, "| a " * 1_200 + "|", "|-" * 2_400 + "|\n", "|:-" * 1_600, " \t" * 2_400]
)
def test_hostile_text_takes_no_time(text: str) -> None:
    """A twentieth of a second of processor time is a hundred times what it needs."""
    start = time.process_time()
    with_fields(f"| a | b |\n{text}\n{text}")
    assert time.process_time() - start < 0.05
