"""What a row of the ledger costs: CPU of noting it on the event loop, and of storing it and adding it up behind it.

    python -m tests.benchmarks.gateway.ledger_rows [--rows 60000] [--alike] [--postgres URL]

300 rows at a time go the whole way, as in a gateway; sums are made of 3,000, and times counted of 15,000. They are of
60 keys, models and backends together and of 150 users and sessions; with `--alike` all of one caller. Journal and file
are in a folder of the system's, CPU is this process's own.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.ledger.days import Days
from gateway.ledger.journal import Journal
from gateway.ledger.reading import Reading
from gateway.ledger.row import AMOUNTS, AT, Row, stored
from gateway.ledger.segment import RecordKind
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.database import Database
from gateway.sql.postgres import PostgresDatabase
from gateway.sql.sqlite import SqliteDatabase
from tests.support.ledger import sample_beginning, sample_row

_AT_ONCE = 300
_ROLLED_UP_AT_ONCE = 3000
_COUNTED_AT_ONCE = 15_000


class Spent:
    """CPU by what it was spent on."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count what happens within."""
        begin = time.process_time()
        yield
        self.seconds[what] += time.process_time() - begin  # type: ignore[assignment]  # a counter of seconds


def _row(n: int, *, is_alike: bool) -> Row:
    row = sample_row(n)
    if is_alike:
        one = sample_row(1)
        for name in ("key", "tenant", "user", "session", "backend", "model", "served", "cache", "status", "stream"):
            setattr(row, name, getattr(one, name))
        for name in ("cached_tokens", "drafted_tokens", "accepted_tokens", *AMOUNTS):
            setattr(row, name, 0)
        row.estimated, row.in_slo, row.ttft_us = False, None, None
        row.cost = row.list_cost = 1000 * row.output_tokens
    return row


def measure(folder: Path, database: Database, num_rows: int, *, is_alike: bool = False) -> Spent:
    """Send so many rows the whole way."""
    spent = Spent()
    journal, reading, days = Journal(folder, 64), Reading(), Days("Europe/Berlin")
    encode = msgspec.msgpack.Encoder().encode
    store = LedgerStore(database, days.zone)
    store.open()
    for first in range(0, num_rows, _AT_ONCE):
        numbers = range(first, first + _AT_ONCE)
        told = [(n, sample_beginning(n), _row(n, is_alike=is_alike)) for n in numbers]
        with spent.on("noted: a beginning and a row"):
            for n, beginning, row in told:
                journal.append(encode(beginning), RecordKind.BEGINNING, n)
                journal.append(encode(row), RecordKind.CALL, n, row)
        with spent.on("read again"):
            taken = reading.take(list(journal.segments), _AT_ONCE)
            rows = [stored(values, journal.worker, days.of(values[AT])) for values in taken]
        with spent.on("stored"):
            store.insert(rows)
        journal.clear()
        journal.provide()
        if not (first + _AT_ONCE) % _ROLLED_UP_AT_ONCE:
            with spent.on("added up"):
                store.roll_up(_ROLLED_UP_AT_ONCE)
        if not (first + _AT_ONCE) % _COUNTED_AT_ONCE:
            with spent.on("times counted"):
                store.count_latencies(_COUNTED_AT_ONCE)
    store.close()
    journal.close(is_stored=True)
    return spent


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--postgres", metavar="URL", help="An empty database, to be measured too.")
    parser.add_argument("--alike", action="store_true", help="Calls of one caller that all go one way.")
    options = parser.parse_args()
    # As a gateway does once it has started.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with tempfile.TemporaryDirectory() as made:
        databases: dict[str, Database] = {"SQLite": SqliteDatabase(Path(made) / "ledger.sqlite3", LEDGER)}
        if options.postgres is not None:
            databases["PostgreSQL"] = PostgresDatabase(options.postgres, LEDGER)
        for name, database in databases.items():
            spent = measure(Path(made) / "journal", database, options.rows, is_alike=options.alike)
            for what, seconds in spent.seconds.items():
                print(f"{name:<12}{what:<32}{seconds / options.rows * 1e6:8.1f} us of CPU a call")


if __name__ == "__main__":
    main()
