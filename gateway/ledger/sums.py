"""Sums of a ledger's rows over hours or days: from the tables of sums, and from rows that are not in them yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from backends.errors import ConfigurationError
from gateway.ledger.days import day_text, hour_text
from gateway.ledger.schema import PICO_PER_MICRO, ROLLUPS, Rollup, quoted
from gateway.ledger.store import mark_and_newest
from gateway.ledger.tables import is_up_to_date
from gateway.sql.database import Database, Transaction

Dimension = Literal["tenant", "team", "key", "model", "route", "operation", "backend", "user", "session", "hour", "day"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


@dataclass(frozen=True, slots=True)
class Line:
    """What the calls with these values come to. Amounts are in pico-dollars, of those charges whose price is known."""

    values: tuple[str, ...]
    sums: dict[str, int]

    def amount(self, name: str) -> int | None:
        """One of `AMOUNTS`, or `saved`, all savings together; None where no price is known."""
        without = self.sums["saved_unknown" if name.startswith("saved") else "unknown"]
        if without == self.sums["charges"]:
            return None
        return self.sums[f"{name}_micro"] * PICO_PER_MICRO + self.sums[f"{name}_pico"]


@dataclass(frozen=True, slots=True)
class Within:
    """From one day or hour to another one, both included: days as 20261129, hours since the Unix epoch. None is as far
    as there is anything."""

    column: Literal["day", "hour"]
    first: int | None
    last: int | None

    def condition(self) -> tuple[str, list[int]]:
        """As SQL, and its values."""
        bounds = [(self.first, ">="), (self.last, "<=")]
        terms = [f"{self.column} {sign} ?" for bound, sign in bounds if bound is not None]
        return " AND ".join(terms) or "1 = 1", [bound for bound, _ in bounds if bound is not None]


def sums(
    transaction: Transaction,
    by: Sequence[Dimension],
    within: Within,
    only: Mapping[Dimension, str] | None = None,
    names: Sequence[str] = (),
) -> Iterator[Line]:
    """A line for each combination of values that there was, in their order; `only` of calls with these values. `names`:
    which sums, for each takes its time; all of them if none is named.

    Raises: ConfigurationError where no table tells all of these apart.
    """
    only = only or {}
    rollup = table_of((*by, *only), within.column)
    names = names or tuple(rollup.sums)
    where, values = within.condition()
    terms = [where, *(f'"{name}" = ?' for name in only)]
    mark, newest = mark_and_newest(transaction)
    columns = quoted((*rollup.keys, *names))
    new = f"SELECT {columns} FROM ({rollup.select('seq > ? AND seq <= ?')}) AS fresh"
    parts = f"SELECT {columns} FROM {rollup.table} UNION ALL {new}"
    added = ", ".join(f'SUM("{name}")' for name in names)
    groups = f"GROUP BY {quoted(by)} ORDER BY {quoted(by)}" if by else ""
    found = transaction.fetch(
        f"SELECT {', '.join([*(quoted([name]) for name in by), added])} FROM ({parts}) AS parts "
        f"WHERE {' AND '.join(terms)} {groups}",
        (mark, newest, *values, *only.values()),
    )
    for row in found:
        if row[-1] is None:
            # All together, and there are none.
            return
        values_of = tuple(value_text(name, value) for name, value in zip(by, row, strict=False))
        yield Line(values_of, dict(zip(names, map(int, row[len(by) :]), strict=True)))


def table_of(by: Sequence[Dimension], time: str = "day") -> Rollup:
    """The table that tells all of these apart. Raises: ConfigurationError where none does."""
    time = "hour" if "hour" in by else time
    for rollup in ROLLUPS:
        if rollup.time == time and set(by) <= set(rollup.keys):
            return rollup
    known = "; ".join(", ".join(rollup.keys) for rollup in ROLLUPS)
    raise ConfigurationError(f"no sums are kept by {' and '.join(by)} together: choose among {known}")


def check_version(transaction: Transaction, database: Database) -> None:
    """Whether the tables are those that this gateway knows. Raises: ConfigurationError."""
    if not is_up_to_date(transaction, database.seq):
        raise ConfigurationError("the ledger is of another version: a gateway of this one has to open it first")


def value_text(dimension: str, value: object) -> str:
    """A value of a dimension, for people."""
    if isinstance(value, int) and dimension in ("day", "hour"):
        return day_text(value) if dimension == "day" else hour_text(value)
    return str(value)
