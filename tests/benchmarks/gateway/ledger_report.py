"""How long reports over many rows take, and whether they say what the rows say.

    python -m tests.benchmarks.gateway.ledger_report [--rows 10000000] [--repeat 5] [--ledger FILE]

A SQLite file with calls of 30 days, 200 keys, 20 tenants and 3 models, in a folder of the system's (about 3 GiB for ten
million rows). Times are of opening the file and reading the whole report, as the command does.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from gateway.ledger.latencies import MEASURES
from gateway.ledger.percentiles import LatencyDimension, Spread, spreads
from gateway.ledger.report import Period, report
from gateway.ledger.row import COLUMNS, FIELDS
from gateway.ledger.schema import INSERT_COLUMNS
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.ledger.sums import Dimension
from gateway.sql.sqlite import SqliteDatabase
from tests.support.ledger import sample_row

DAYS = 30
_BEGIN_US = int(datetime(2026, 10, 1, tzinfo=UTC).timestamp()) * 10**6
_STEP = 500_000
_WAYS: tuple[tuple[Dimension, ...], ...] = (
    ("day", "tenant"),
    ("tenant",),
    ("day", "key", "model"),
    ("hour",),
    ("user",),
)
_LATENCY_WAYS: tuple[tuple[LatencyDimension, ...], ...] = (("route",), ("tenant",), ("day", "route"), ("hour",))
_A_WEEK = Period(date(2026, 10, 20), date(2026, 10, 26))
_ALWAYS = Period(None, None)


def make(path: Path, num_rows: int, begin_us: int) -> None:
    """Fill the file, by statements: rows like the sample's, each with values of its own."""
    store = LedgerStore(SqliteDatabase(path, LEDGER), "UTC")
    store.open()
    varied = {
        "worker": "1",
        "n": "i",
        "at_us": (at_us := f"{begin_us} + i * ({DAYS} * 86400000000 / {num_rows})"),
        "day": f"CAST(strftime('%Y%m%d', ({at_us}) / 1000000, 'unixepoch') AS INTEGER)",
        "key": "'key-' || (i * 7 % 200)",
        "tenant": "'tenant-' || (i * 7 % 200 / 10)",
        "model": "'model-' || (i % 3)",
        "user": "'user-' || (i * 13 % 1000)",
        "session": "''",
        "agent": "'program-' || (i * 7 % 200 % 8)",
        "priority": "CASE i * 7 % 200 % 10 WHEN 0 THEN 'high' WHEN 1 THEN 'low' ELSE 'normal' END",
        "input_tokens": "100 + i % 900",
        "output_tokens": "i % 500",
        "total_us": "200000 + i * 7919 % 30000000",
        "ttft_us": "CASE WHEN i % 2 THEN 50000 + i * 7919 % 3000000 END",
        "tpot_us": "CASE WHEN i % 2 THEN 5000 + i * 104729 % 40000 END",
        "cost": "CASE WHEN i % 11 THEN 1000003 * (i % 4999) END",
    }
    fixed = dict(zip(FIELDS, msgspec.structs.astuple(sample_row(1)), strict=True))
    values = ", ".join(varied.get(name) or _literal(fixed[name]) for name in COLUMNS)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    for first in range(0, num_rows, _STEP):
        upto = min(first + _STEP, num_rows)
        numbers = (
            f"WITH RECURSIVE numbers(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < {upto})"
        )
        connection.execute(f"INSERT INTO calls ({INSERT_COLUMNS}) {numbers} SELECT {values} FROM numbers")
    connection.close()
    while store.roll_up(_STEP):
        pass
    while store.count_latencies(_STEP):
        pass
    store.close()


def equals_rows(path: Path, by: tuple[Dimension, ...]) -> bool:
    """Whether the report has the sums that the rows have; costs are added apart, for their sum may be too large."""
    columns = ", ".join("at_us / 3600000000" if name == "hour" else f'"{name}"' for name in by)
    connection = sqlite3.connect(path)
    rows = connection.execute(
        f"SELECT COUNT(*), SUM(input_tokens), SUM(cost / 1000000), SUM(cost % 1000000), SUM(cost IS NULL) FROM calls "
        f"GROUP BY {columns} ORDER BY {columns}"
    ).fetchall()
    connection.close()
    expected = [(calls, tokens, micro * 10**6 + pico, unknown) for calls, tokens, micro, pico, unknown in rows]
    lines = list(report(SqliteDatabase(path, LEDGER), by, _ALWAYS))
    told = [
        (line.sums["calls"], line.sums["input_tokens"], line.amount("cost"), line.sums["unknown"]) for line in lines
    ]
    return told == expected


def percentiles_are_those_of_rows(path: Path, found: list[Spread]) -> bool:
    """Whether the median and the 99th percentile of one route are those of its rows, to 3.2 %."""
    connection = sqlite3.connect(path)
    fine = "FROM calls WHERE status < 400"
    for spread in found:
        column = MEASURES[spread.measure]
        (calls,) = connection.execute(f"SELECT COUNT({column}) {fine}").fetchone()
        if spread.calls != calls:
            return False
        for percent in (50, 99):
            rank = -(-calls * percent // 100)
            (true,) = connection.execute(
                f"SELECT {column} {fine} AND {column} IS NOT NULL ORDER BY 1 LIMIT 1 OFFSET {rank - 1}"
            ).fetchone()
            if abs(spread.percentiles_us([percent])[0] - true) > 0.032 * true:
                return False
    connection.close()
    return True


@contextmanager
def filled_ledger(description: str | None, begin_us: int = _BEGIN_US) -> Iterator[tuple[Path, int]]:
    """A ledger of as many rows as the command line says, and how often to measure."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ledger", type=Path, help="where to keep it; what is there is taken as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        path = options.ledger or Path(made) / "ledger.sqlite3"
        if not path.exists():
            print(f"filling a ledger with {options.rows:,} rows ...", flush=True)
            make(path, options.rows, begin_us)
        yield path, options.repeat


def main() -> None:
    """Print a table."""
    with filled_ledger(__doc__) as (path, repeat):
        for by in _WAYS:
            times_s: list[float] = []
            num_lines = 0
            for _ in range(repeat):
                begin = time.perf_counter()
                database = SqliteDatabase(path, LEDGER)
                num_lines = len(list(report(database, by, _ALWAYS)))
                database.close()
                times_s.append(time.perf_counter() - begin)
            same = "equal to the rows" if equals_rows(path, by) else "NOT EQUAL TO THE ROWS"
            print(f"{' x '.join(by):<20}{num_lines:>8,} lines{min(times_s) * 1e3:>10.1f} ms  {same}")
        for period in (_ALWAYS, _A_WEEK):
            for percentiles_by in _LATENCY_WAYS:
                _measure_percentiles(path, percentiles_by, period, repeat)


def _measure_percentiles(path: Path, by: tuple[LatencyDimension, ...], period: Period, repeat: int) -> None:
    times_s: list[float] = []
    found: list[Spread] = []
    for _ in range(repeat):
        begin = time.perf_counter()
        database = SqliteDatabase(path, LEDGER)
        found = list(spreads(database, by, period))
        database.close()
        times_s.append(time.perf_counter() - begin)
    span = "all" if period.since is None else "7 days"
    same = ""
    if by == ("route",) and period.since is None:
        same = "those of the rows" if percentiles_are_those_of_rows(path, found) else "NOT THOSE OF THE ROWS"
    print(f"percentiles, {' x '.join(by)}, {span:<8}{len(found):>8,} lines{min(times_s) * 1e3:>10.1f} ms  {same}")


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(int(value))  # type: ignore[call-overload, no-any-return]


if __name__ == "__main__":
    main()
