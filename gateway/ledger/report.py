"""What the rows of a ledger add up to between two days."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo

from gateway.ledger.days import day_number
from gateway.ledger.schema import PICO_PER_MICRO, ROLLUPS, quoted
from gateway.ledger.sums import DIMENSIONS, Dimension, Line, Within, check_version, sums, table_of
from gateway.ledger.tables import read_settings
from gateway.sql.database import Database
from policies.time_zone import zone_of


@dataclass(frozen=True, slots=True)
class Period:
    """From the beginning of one day to the end of another one; None is as far as there is anything."""

    since: date | None
    until: date | None

    @property
    def days(self) -> Within:
        """The days within."""
        first, last = (None if day is None else day_number(day) for day in (self.since, self.until))
        return Within("day", first, last)

    def hours(self, time_zone: str) -> Within:
        """The hours that begin within, of days there."""
        zone = zone_of(time_zone)
        first = last = None
        if self.since is not None:
            first = _first_hour(self.since, zone)
        if self.until is not None and self.until < date.max:
            # The last hour of a day itself may come twice.
            last = _first_hour(self.until + timedelta(days=1), zone) - 1
        return Within("hour", first, last)


def report(database: Database, by: Sequence[Dimension], period: Period) -> Iterator[Line]:
    """A line for each combination of values that there was, in their order.

    Raises: ConfigurationError, StoreUnavailable.
    """
    is_by_hour = table_of(by).time == "hour"
    with database.reading() as transaction:
        check_version(transaction, database)
        # The days of its rows, whatever the policy at hand says.
        within = period.hours(read_settings(transaction)["time_zone"]) if is_by_hour else period.days
        yield from sums(transaction, by, within)


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
    where, bounds = period.days.condition()
    with database.reading() as transaction:
        check_version(transaction, database)
        found = transaction.fetch(
            f"SELECT {quoted(by)}, SUM(cost / {PICO_PER_MICRO}), SUM(cost % {PICO_PER_MICRO}) FROM calls "
            f"WHERE {where} AND cost IS NOT NULL GROUP BY {quoted(by)}",
            bounds,
        )
        for *values, micro, pico in found:
            yield tuple(map(str, values)), int(micro) * PICO_PER_MICRO + int(pico)


def _first_hour(day: date, zone: tzinfo) -> int:
    """Of those that begin on that day."""
    return -int(-datetime.combine(day, time(), zone).timestamp() // 3600)
