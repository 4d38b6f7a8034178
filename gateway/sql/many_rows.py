"""Rows for SQLite, many in a statement: SQLite's driver takes longer to hand over a value than SQLite to keep it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

_AT_ONCE = (64, 8, 1)
"""Rows of a statement, for each statement takes as long as some rows."""
_SEEN_TIMES = 256
"""So often columns that have differed are taken to differ: a statement that is new takes as long as a hundred rows."""
_NOTHING: Mapping[object, str] = {None: "NULL", 0: "0", "": "''"}
"""What says nothing, as SQL."""


class ManyRows:
    """Into one table. Most columns say the same in all rows of a moment, and then it is handed over once for all; what
    says nothing stands in the statement.
    """

    def __init__(self, table: str, columns: str) -> None:
        self._into = f"INSERT INTO {table} ({columns}) VALUES "
        self._statements: dict[tuple[str | None, ...], tuple[str, ...]] = {}
        self._differed: set[int] = set()
        """Columns, by their place, that were not the same in all rows of a time."""
        self._num_times = 0

    def add(self, connection: sqlite3.Connection, columns: Sequence[Sequence[Any]]) -> int:
        """Add those that are not there yet: how many. Raises: sqlite3.Error, OverflowError, UnicodeEncodeError."""
        places, shared, own = self._told(columns)
        num_rows = len(columns[0])
        statements = self._statements.get(places)
        if statements is None:
            statements = self._statements[places] = tuple(self._statement(places, number) for number in _AT_ONCE)
        num_added = begin = 0
        for at_once, statement in zip(_AT_ONCE, statements, strict=True):
            while num_rows - begin >= at_once:
                values = [*shared, *chain.from_iterable(own[begin : begin + at_once])]
                num_added += connection.execute(statement, values).rowcount
                begin += at_once
        return num_added

    def _told(
        self, columns: Sequence[Sequence[Any]]
    ) -> tuple[tuple[str | None, ...], list[Any], list[tuple[Any, ...]]]:
        """For each column what is the same in all rows, as SQL; the values that this names; what each row has else."""
        self._num_times += 1
        if self._num_times % _SEEN_TIMES == 0:
            self._differed.clear()
            self._statements.clear()
        places: list[str | None] = []
        shared, own = [], []
        for place, values in enumerate(columns):
            first = values[0]
            if place in self._differed or values.count(first) < len(values):
                self._differed.add(place)
                places.append(None)
                own.append(values)
            elif (nothing := _NOTHING.get(first)) is not None:
                places.append(nothing)
            else:
                shared.append(first)
                places.append(f"?{len(shared)}")
        return tuple(places), shared, list(zip(*own, strict=True)) or [()] * len(columns[0])

    def _statement(self, places: Sequence[str | None], num_rows: int) -> str:
        numbers = count(1 + sum(place is not None and place.startswith("?") for place in places))
        values = ", ".join(f"({', '.join(_row(places, numbers))})" for _ in range(num_rows))
        return f"{self._into}{values} ON CONFLICT DO NOTHING"


def _row(places: Sequence[str | None], numbers: Iterator[int]) -> Iterator[str]:
    for place in places:
        yield place if place is not None else f"?{next(numbers)}"
