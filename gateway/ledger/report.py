"""What the rows of a ledger add up to: from the sums, and from those rows that are not in them yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from backends.errors import ConfigurationError
from gateway.ledger.days import day_number, day_text, hour_text
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
class Period:
    """From the beginning of one day to the end of another one; None is as far as there is anything."""

    since: date | None
    until: date | None
    time_zone: str

    def condition(self, column: str) -> tuple[str, list[int]]:
        """What is within, as SQL about a column of days or of hours, and its values."""
        terms: list[str] = []
        values: list[int] = []
        for bound, sign in ((self.since, ">="), (self.until, "<=")):
            if bound is not None:
                terms.append(f"{column} {sign} ?")
                values.append(day_number(bound))
        return " AND ".join(terms) or "1 = 1", values

    def hours(self) -> tuple[str, list[int]]:
        """The same about hours since the Unix epoch: those that begin within."""
        zone = ZoneInfo(self.time_zone)
        terms: list[str] = []
        values: list[int] = []
        if self.since is not None:
            terms.append("hour >= ?")
            values.append(-int(-datetime.combine(self.since, time(), zone).timestamp() // 3600))
        if self.until is not None:
            terms.append("hour <= ?")
            values.append(int(datetime.combine(self.until, time.max, zone).timestamp() // 3600))
        return " AND ".join(terms) or "1 = 1", values


def table_of(by: Sequence[Dimension]) -> Rollup:
    """The table that tells all of these apart. Raises: ConfigurationError where none does."""
    for rollup in ROLLUPS:
        if set(by) <= set(rollup.keys):
            return rollup
    known = "; ".join(", ".join(rollup.keys) for rollup in ROLLUPS)
    raise ConfigurationError(f"no sums are kept by {' and '.join(by)} together: choose among {known}")


def report(database: Database, by: Sequence[Dimension], period: Period) -> Iterator[Line]:
    """A line for each combination of values that there was, in their order.

    Raises: ConfigurationError, StoreUnavailable.
    """
    rollup = table_of(by)
    where, values = period.hours() if rollup.time == "hour" else period.condition("day")
    with database.reading() as transaction:
        check_version(transaction, database)
        mark, newest = mark_and_newest(transaction)
        columns = quoted((*rollup.keys, *rollup.sums))
        new = f"SELECT {columns} FROM ({rollup.select('seq > ? AND seq <= ?')}) AS fresh"
        parts = f"SELECT {columns} FROM {rollup.table} UNION ALL {new}"
        sums = ", ".join(f'SUM("{name}")' for name in rollup.sums)
        found = transaction.fetch(
            f"SELECT {quoted(by)}, {sums} FROM ({parts}) AS parts WHERE {where} GROUP BY {quoted(by)} "
            f"ORDER BY {quoted(by)}",
            (mark, newest, *values),
        )
        for row in found:
            values_of = tuple(value_text(name, value) for name, value in zip(by, row, strict=False))
            yield Line(values_of, dict(zip(rollup.sums, map(int, row[len(by) :]), strict=True)))


def costs(database: Database, by: Sequence[str], period: Period) -> Iterator[tuple[tuple[str, ...], int]]:
    """Pico-dollars of each combination of values, from the rows where no sums tell these apart: slower, and only of
    those rows that are kept.

    Raises: ConfigurationError, StoreUnavailable.
    """
    names = [name for name in DIMENSIONS if name in by]
    if len(names) == len(by) and any(set(by) <= set(rollup.keys) for rollup in ROLLUPS):
        for line in report(database, names, period):
            value_of: dict[str, str] = dict(zip(names, line.values, strict=True))
            yield tuple(value_of[name] for name in by), line.amount("cost") or 0
        return
    where, bounds = period.condition("day")
    with database.reading() as transaction:
        check_version(transaction, database)
        found = transaction.fetch(
            f"SELECT {quoted(by)}, SUM(cost / {PICO_PER_MICRO}), SUM(cost % {PICO_PER_MICRO}) FROM calls "
            f"WHERE {where} AND cost IS NOT NULL GROUP BY {quoted(by)}",
            bounds,
        )
        for *values, micro, pico in found:
            yield tuple(map(str, values)), int(micro) * PICO_PER_MICRO + int(pico)


def check_version(transaction: Transaction, database: Database) -> None:
    """Whether the tables are those that this gateway knows. Raises: ConfigurationError."""
    if not is_up_to_date(transaction, database.seq):
        raise ConfigurationError("the ledger is of another version: a gateway of this one has to open it first")


def value_text(dimension: str, value: object) -> str:
    """A value of a dimension, for people."""
    if isinstance(value, int) and dimension in ("day", "hour"):
        return day_text(value) if dimension == "day" else hour_text(value)
    return str(value)
