"""Sums of a ledger's rows over hours or days: from the tables of sums, and from rows that are not in them yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from backends.errors import ConfigurationError
from gateway.ledger.days import day_text, hour_text
from gateway.ledger.schema import PICO_PER_MICRO, ROLLUPS, Rollup, quoted
from gateway.ledger.store import mark_and_newest
from gateway.ledger.tables import is_up_to_date
from gateway.sql.database import Database, Transaction

Dimension = Literal[
    "tenant",
    "team",
    "key",
    "agent",
    "priority",
    "model",
    "route",
    "operation",
    "backend",
    "user",
    "session",
    "hour",
    "day",
]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
_MINUTE_US = 60 * 10**6


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
    """From one day, hour or minute to another one, both included: days as 20261129, hours and minutes since the Unix
    epoch. None is as far as there is anything. Of minutes no sums are kept: they are added up from rows."""

    column: Literal["day", "hour", "minute"]
    first: int | None
    last: int | None

    def condition(self) -> tuple[str, list[int]]:
        """As SQL, and its values."""
        bounds = [(self.first, ">="), (self.last, "<=")]
        terms = [f"{self.column} {sign} ?" for bound, sign in bounds if bound is not None]
        return " AND ".join(terms) or "1 = 1", [bound for bound, _ in bounds if bound is not None]

    def rows(self) -> str:
        """Of minutes: as SQL about a row, by which an index finds them."""
        bounds = [(self.first, ">=", 0), (self.last, "<", 1)]
        terms = [f"at_us {sign} {(bound + more) * _MINUTE_US:d}" for bound, sign, more in bounds if bound is not None]
        return " AND ".join(terms) or "1 = 1"


def sums(
    transaction: Transaction,
    by: Sequence[Dimension | Literal["minute"]],
    within: Within,
    only: Mapping[Dimension, str] | None = None,
    names: Sequence[str] = (),
) -> Iterator[Line]:
    """A line for each combination of values that there was, in their order; `only` of calls with these values. `names`:
    which sums, for each takes its time; all of them if none is named.

    Raises: ConfigurationError where no table tells all of these apart.
    """
    only = only or {}
    terms = [f'"{name}" = ?' for name in only]
    if within.column == "minute":
        yield from _of_rows(transaction, by, within, (terms, tuple(only.values())), names)
        return
    rollup = table_of([name for name in (*by, *only) if name != "minute"], within.column)
    names = names or tuple(rollup.sums)
    where, values = within.condition()
    mark, newest = mark_and_newest(transaction)
    columns = quoted((*rollup.keys, *names))
    new = f"SELECT {columns} FROM ({rollup.select('seq > ? AND seq <= ?')}) AS fresh"
    parts = f"SELECT {columns} FROM {rollup.table} UNION ALL {new}"
    added = ", ".join(f'SUM("{name}")' for name in names)
    groups = f"GROUP BY {quoted(by)} ORDER BY {quoted(by)}" if by else ""
    found = transaction.fetch(
        f"SELECT {', '.join([*(quoted([name]) for name in by), added])} FROM ({parts}) AS parts "
        f"WHERE {' AND '.join([where, *terms])} {groups}",
        (mark, newest, *values, *only.values()),
    )
    yield from _lines(found, by, names)


def first_day(transaction: Transaction, tenant: str | None = None) -> int | None:
    """The first day that has anything, of everybody or of one tenant, as 20261129; None where there is nothing."""
    mark, newest = mark_and_newest(transaction)
    own, values = ("", ()) if tenant is None else (" AND tenant = ?", (tenant,))
    kept = f"SELECT MIN(day) AS day FROM {ROLLUPS[0].table} WHERE 1 = 1{own}"
    new = f"SELECT MIN(day) AS day FROM calls WHERE seq > ? AND seq <= ?{own}"
    ((day,),) = transaction.fetch(
        f"SELECT MIN(day) FROM ({kept} UNION ALL {new}) AS days", (*values, mark, newest, *values)
    )
    return None if day is None else int(day)


def _of_rows(
    transaction: Transaction,
    by: Sequence[str],
    within: Within,
    only: tuple[list[str], tuple[str, ...]],
    names: Sequence[str],
) -> Iterator[Line]:
    sums = ROLLUPS[0].sums
    names = names or tuple(sums)
    minute = f"at_us / {_MINUTE_US} AS minute"
    selected = [*(minute if name == "minute" else f'"{name}"' for name in by), *(sums[name] for name in names)]
    terms, values = only
    # Counts of nothing would be a line of 0.
    groups = f"GROUP BY {quoted(by)} ORDER BY {quoted(by)}" if by else "HAVING COUNT(*) > 0"
    sql = f"SELECT {', '.join(selected)} FROM calls WHERE {' AND '.join([within.rows(), *terms])} {groups}"
    yield from _lines(transaction.fetch(sql, values), by, names)


def _lines(found: Iterator[tuple[Any, ...]], by: Sequence[str], names: Sequence[str]) -> Iterator[Line]:
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
        raise ConfigurationError(
            "the ledger is of another version, or empty: a gateway of this one has to open it first"
        )


def value_text(dimension: str, value: object) -> str:
    """A value of a dimension, for people."""
    if isinstance(value, int) and dimension in ("day", "hour"):
        return day_text(value) if dimension == "day" else hour_text(value)
    return str(value)
