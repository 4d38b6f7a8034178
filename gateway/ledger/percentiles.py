"""Percentiles of how long calls took, over any span: read from counts, and from rows that are not counted yet."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Literal, get_args

from backends.errors import ConfigurationError
from gateway.ledger import latencies
from gateway.ledger.days import day_number
from gateway.ledger.report import Period
from gateway.ledger.schema import quoted
from gateway.ledger.store import mark_and_newest
from gateway.ledger.sums import Within, check_version, value_text
from gateway.sql.database import Database, Transaction

LatencyDimension = Literal["tenant", "route", "model", "prompt", "hour", "day"]
LATENCY_DIMENSIONS: tuple[LatencyDimension, ...] = get_args(LatencyDimension)


@dataclass(frozen=True, slots=True)
class Spread:
    """How long the calls with these values took to one point of theirs: counts by where they begin, in order."""

    values: tuple[str, ...]
    measure: str
    counts: tuple[tuple[int, int], ...]

    @property
    def calls(self) -> int:
        """How many there were."""
        return sum(count for _, count in self.counts)

    def percentiles_us(self, percents: Sequence[float]) -> list[float]:
        """What so many of a hundred did not exceed, to 3.2 %, for each of these numbers, which grow: the middle of the
        count with the call of that rank.
        """
        calls, found, num_below = self.calls, [], 0
        ranks = deque(max(1, -int(-calls * percent // 100)) for percent in percents)
        for at_least_us, count in self.counts:
            num_below += count
            while ranks and ranks[0] <= num_below:
                ranks.popleft()
                found.append(at_least_us + (latencies.width_us(at_least_us) - 1) / 2)
        return found


def together(measure: str, parts: Iterable[Spread]) -> Spread:
    """Spreads of one measure as one."""
    counts: Counter[int] = Counter()
    for part in parts:
        for at_least_us, count in part.counts:
            counts[at_least_us] += count
    return Spread((), measure, tuple(sorted(counts.items())))


def spreads(database: Database, by: Sequence[LatencyDimension], period: Period) -> Iterator[Spread]:
    """For each combination of values, and each of `MEASURES` that it has, in their order.

    Raises: ConfigurationError, StoreUnavailable.
    """
    with database.reading() as transaction:
        check_version(transaction, database)
        yield from counted(transaction, by, period.days)


def counted(
    transaction: Transaction,
    by: Sequence[LatencyDimension | Literal["minute"]],
    within: Within,
    only: Mapping[LatencyDimension, str] | None = None,
) -> Iterator[Spread]:
    """The same within days, hours or minutes; `only` of calls with these values.

    Raises: ConfigurationError where no table tells all of these apart.
    """
    only = only or {}
    keys = quoted((*by, "measure", "at_least_us"))
    if within.column == "minute":
        terms = " AND ".join(["1 = 1", *(f'"{name}" = ?' for name in only)])
        new = latencies.select(within.rows(), (*by, *only))
        sql = f"SELECT {keys}, SUM(calls) FROM ({new}) AS counted WHERE {terms} "
        yield from _spreads(transaction.fetch(f"{sql} GROUP BY {keys} ORDER BY {keys}", tuple(only.values())), by)
        return
    where, bounds = within.condition()
    steps: list[LatencyDimension] = [within.column] if bounds else []
    table = _table_of([*(name for name in by if name != "minute"), *only, *steps])
    about, days = _days_about(within)
    where = " AND ".join([where, *about, *(f'"{name}" = ?' for name in only)])
    values = (*bounds, *days, *only.values())
    mark, newest = mark_and_newest(transaction, latencies.MARK)
    fresh = latencies.select(f"seq > {mark:d} AND seq <= {newest:d}")
    names = quoted((*table.keys, "calls"))
    found = transaction.fetch(
        f"SELECT {keys}, SUM(calls) FROM (SELECT {names} FROM {table.table} WHERE {where} "
        f"UNION ALL SELECT {names} FROM ({fresh}) AS fresh WHERE {where}) AS counted "
        f"GROUP BY {keys} ORDER BY {keys}",
        (*values, *values),
    )
    yield from _spreads(found, by)


def _spreads(found: Iterator[tuple[Any, ...]], by: Sequence[str]) -> Iterator[Spread]:
    for (*of, measure), group in groupby(found, key=lambda row: row[: len(by) + 1]):
        texts = tuple(value_text(name, value) for name, value in zip(by, of, strict=True))
        yield Spread(texts, measure, tuple((int(row[-2]), int(row[-1])) for row in group))


def _days_about(within: Within) -> tuple[list[str], list[int]]:
    """As SQL, and its values: the days of any time zone in which these hours may lie, by which rows are found without
    looking at all of them. Nothing of what is given in days.
    """
    if within.column == "day":
        return [], []
    ends = [(within.first, "day >= ?", -1), (within.last, "day <= ?", 1)]
    known = [(hour, term, more) for hour, term, more in ends if hour is not None]
    moments = [datetime.fromtimestamp(hour * 3600, UTC) + timedelta(days=more) for hour, _, more in known]
    return [term for _, term, _ in known], [day_number(moment.date()) for moment in moments]


def _table_of(by: Sequence[LatencyDimension]) -> latencies.Counts:
    for counts in latencies.COUNTS:
        if set(by) <= set(counts.dimensions):
            return counts
    known = "; ".join(", ".join(counts.dimensions) for counts in latencies.COUNTS)
    raise ConfigurationError(f"no times are counted by {' and '.join(by)} together: choose among {known}")
