"""Stores of the ledger: a row is there once, sums are those of the rows, whatever comes late, twice or goes."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.errors import ConfigurationError, StoreUnavailable
from gateway.ledger import latencies
from gateway.ledger.days import Days
from gateway.ledger.lookup import newest_call
from gateway.ledger.report import Period, report
from gateway.ledger.row import BATCH_LINE, FIELDS, SAVINGS, Row, Stored, stored
from gateway.ledger.schema import ROLLUPS, Rollup, quoted
from gateway.ledger.store import LEDGER, LedgerStore, mark_and_newest
from gateway.ledger.sums import Dimension
from gateway.sql.database import Database, Transaction
from gateway.sql.sqlite import SqliteDatabase
from tests.gateway.ledger.conftest import Connect
from tests.support.ledger import START_US, Postgres, running_postgres, sample_row

BERLIN = "Europe/Berlin"
ALWAYS = Period(None, None)
DAYS = Days(BERLIN)


def of(row: Row, worker: int = 1) -> Stored:
    return stored(msgspec.structs.astuple(row), worker, DAYS.of(row.at_us))


def opened(database: Database, zone: str = BERLIN) -> LedgerStore:
    store = LedgerStore(database, zone)
    store.open()
    return store


def sums_of(rows: Sequence[Row], by: Sequence[Dimension]) -> dict[tuple[str, ...], dict[str, int]]:
    """What a report has to say, from the rows themselves, in Python's own numbers."""
    found: dict[tuple[str, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        day = str(DAYS.of(row.at_us))
        known = {"day": f"{day[:4]}-{day[4:6]}-{day[6:]}"}
        sums = found[tuple(known.get(name) or getattr(row, name) for name in by)]
        sums["calls"] += row.part == 0
        sums["input_tokens"] += row.input_tokens
        sums["output_tokens"] += row.output_tokens
        sums["unknown"] += row.cost is None
        sums["cost"] += row.cost or 0
        sums["saved"] += sum(getattr(row, name) or 0 for name in SAVINGS)
    return {values: dict(sums) for values, sums in found.items()}


def told(database: Database, by: Sequence[Dimension], period: Period = ALWAYS) -> dict[tuple[str, ...], dict[str, int]]:
    """What a report says."""
    return {
        line.values: {
            **{name: line.sums[name] for name in ("calls", "input_tokens", "output_tokens", "unknown")},
            **{name: line.amount(name) or 0 for name in ("cost", "saved")},
        }
        for line in report(database, by, period)
    }


WAYS: tuple[tuple[Dimension, ...], ...] = (
    ("tenant",),
    ("day",),
    ("day", "tenant"),
    ("key", "model", "route"),
    ("user",),
    ("day", "session"),
    ("tenant", "user"),
)


def test_line_of_a_batch_is_one_row_whoever_notes_it(connect: Connect) -> None:
    """What it came to first and came to later, when it was asked again, are two; calls are those of their worker."""

    def line(n: int, end: str) -> Row:
        row = sample_row(n)
        row.kind, row.request_id, row.end = BATCH_LINE, "batch_1-7", end
        return row

    store = opened(connect())
    assert store.insert([of(line(1, "error")), of(line(2, "clean")), of(sample_row(1))]) == (3, 0)
    assert store.insert([of(line(3, "clean"), worker=2), of(sample_row(1), worker=2)]) == (1, 0)
    store.close()

    assert told(connect(), ["tenant"])["tenant-1",]["calls"] == 3


def test_same_rows_again_are_the_same_rows(connect: Connect) -> None:
    """However often, and in whatever company, they come."""
    store = opened(connect())
    rows = [of(sample_row(n)) for n in range(50)]

    assert store.insert(rows[:30]) == (30, 0)
    assert store.insert(rows) == (20, 0)
    assert store.insert(rows) == (0, 0)
    assert store.insert([of(sample_row(3), worker=2), of(sample_row(3, part=1))]) == (2, 0)


def test_report_equals_the_rows_whatever_is_added_up_already(connect: Connect) -> None:
    """With late rows, corrections, rows that came twice, before, between and after steps of the sums."""
    database = connect()
    store, other = opened(database), opened(connect())
    random_ = random.Random(1)
    kept: dict[tuple[int, int], Row] = {}
    for step in range(12):
        rows = [sample_row(step * 100 + n) for n in range(random_.randrange(1, 80))]
        rows += [sample_row(random_.randrange(1, 10_000), part=1, at_us=START_US - 86400 * 10**6 * step)]
        rows += random_.sample(list(kept.values()), min(5, len(kept)))
        store.insert([of(row) for row in rows])
        for row in rows:
            kept.setdefault((row.n, row.part), row)
        if step % 3:
            # Who has the rows at hand, or who has to look at them.
            (store if step % 4 else other).roll_up(random_.randrange(1, 60))
        for by in WAYS:
            assert told(database, by) == sums_of(list(kept.values()), by)


def any_row(n: int, random_: random.Random) -> Row:
    """One that may be of any kind, and fail in any way."""
    row = sample_row(n, part=random_.choice((0, 0, 0, 1)))
    row.cache = random_.choice(("", "miss", "hit", "joined", "semantic", "bypass"))
    row.fault = random_.choice(("", "gateway", "upstream", "client"))
    row.error = random_.choice(("", "", "slo_shed", "timeout"))
    row.status = random_.choice((200, 200, 429, 502))
    row.end = random_.choice(("clean", "clean", "client_gone"))
    row.kind = random_.choice(("call", "call", "batch"))
    row.in_slo = random_.choice((None, False, True))
    row.input_tokens, row.image_tokens = random_.randrange(100_000), random_.choice((0, 765))
    row.saved_batch = random_.choice((row.saved_batch, None, -(10**17)))
    row.tpot_us, row.total_us = random_.choice((None, 0, 12_345)), random_.randrange(2 ** random_.randrange(1, 45))
    return row


def test_rows_at_hand_add_up_to_what_those_of_the_database_do(tmp_path: Path) -> None:
    """Every sum and every count, in every table, of rows of every kind."""
    random_ = random.Random(2)
    rows = [any_row(n, random_) for n in range(700)]
    found = []
    for name in ("at hand", "looked at"):
        database = SqliteDatabase(tmp_path / name, LEDGER)
        store = opened(database)
        for first in range(0, len(rows), 90):
            store.insert([of(row) for row in rows[first : first + 90]])
            adding = store if name == "at hand" else opened(database)
            if first % 4 == 0:
                adding.roll_up(10**6)
            if first % 7 == 0:
                adding.count_latencies(10**6)
        adding.roll_up(10**6)
        adding.count_latencies(10**6)
        with database.reading() as transaction:
            assert mark_and_newest(transaction) == mark_and_newest(transaction, latencies.MARK) == (700, 700)
            sums = {rollup.table: list(transaction.fetch(_whole_amounts(rollup))) for rollup in ROLLUPS}
            counts = {each.table: sorted(transaction.fetch(f"SELECT * FROM {each.table}")) for each in latencies.COUNTS}
            found.append((sums, counts))

    assert found[0] == found[1]


def _whole_amounts(rollup: Rollup) -> str:
    amounts = [f"{name[:-6]}_micro * 1000000 + {name[:-6]}_pico" for name in rollup.sums if name.endswith("_micro")]
    others = [name for name in rollup.sums if not name.endswith(("_micro", "_pico"))]
    keys = quoted(rollup.keys)
    return f"SELECT {keys}, {', '.join([*others, *amounts])} FROM {rollup.table} ORDER BY {keys}"


def test_names_that_are_new_in_each_row_are_not_all_kept_at_hand(tmp_path: Path) -> None:
    """Clients invent models: the store says when it has many counts, and has none once they are in their tables."""
    database = SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER)
    store = opened(database)
    rows = []
    while not store.has_many_counts:
        assert len(rows) < 20_000
        new = [sample_row(len(rows) + n) for n in range(1000)]
        for row in new:
            row.model, row.ttft_us, row.tpot_us, row.status = f"invented-{row.n}", 90_000, 1000, 200
        store.insert([of(row) for row in new])
        rows += new
    store.count_latencies(1)

    assert not store.has_many_counts
    with database.reading() as transaction:
        assert list(transaction.fetch("SELECT SUM(calls) FROM latencies_by_day")) == [(3 * len(rows),)]


def test_sums_are_of_the_file_that_is_there(tmp_path: Path) -> None:
    """Of rows at hand that went away with theirs, none is added to another one."""
    path = tmp_path / "ledger.sqlite3"
    store = opened(SqliteDatabase(path, LEDGER))
    store.insert([of(sample_row(n)) for n in range(20)])
    for each in tmp_path.iterdir():
        each.unlink()
    database = SqliteDatabase(path, LEDGER)
    rows = [sample_row(n) for n in range(100, 120)]
    opened(database).insert([of(row, worker=2) for row in rows])
    store.roll_up(1000)
    store.count_latencies(1000)

    assert told(database, ("day", "tenant")) == sums_of(rows, ("day", "tenant"))


def test_sums_stay_when_rows_go(connect: Connect) -> None:
    """Rows go only once they are in the sums; what each day came to stays."""
    database = connect()
    store = opened(connect())
    old = [sample_row(n) for n in range(300)]
    new = [sample_row(n, at_us=START_US + 40 * 86400 * 10**6 + n) for n in range(300, 400)]
    opened(database).insert([of(row) for row in old + new])
    before_us = START_US + 20 * 86400 * 10**6
    store.count_latencies(10**6)
    store.prune(before_us, DAYS.of(before_us))
    store.roll_up(150)
    store.prune(before_us, DAYS.of(before_us))
    with database.reading() as transaction:
        assert list(transaction.fetch("SELECT COUNT(*) FROM calls")) == [(250,)]
    store.roll_up(10**6)
    assert not store.prune(before_us, DAYS.of(before_us))

    with database.reading() as transaction:
        assert list(transaction.fetch("SELECT COUNT(*) FROM calls")) == [(100,)]
    assert told(database, ("day", "tenant")) == sums_of(old + new, ("day", "tenant"))
    assert told(database, ("user",)) == sums_of(new, ("user",))
    # Numbers do not begin anew, or rows that come now would be below the mark.
    with database.writing() as transaction:
        transaction.execute("DELETE FROM calls")
    late = sample_row(1000)
    store.insert([of(late)])
    assert told(database, ("day", "tenant")) == sums_of([*old, *new, late], ("day", "tenant"))


def test_writers_beside_each_other_lose_nothing(connect: Connect) -> None:
    """Three of them, each adding up too: a row that was committed late is not left out of the sums."""
    database = connect()
    opened(database)
    errors: list[BaseException] = []

    def write(worker: int) -> None:
        store = LedgerStore(connect(), BERLIN)
        try:
            for first in range(0, 300, 10):
                store.insert([of(sample_row(n), worker) for n in range(first, first + 10)])
                store.roll_up(37)
        except BaseException as error:  # the test's own thread has to hear of it
            errors.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    store = LedgerStore(connect(), BERLIN)
    while store.roll_up(1000):
        pass
    assert told(database, ("tenant",)) == sums_of([sample_row(n) for n in range(300)] * 3, ("tenant",))


def test_amounts_have_no_end(connect: Connect) -> None:
    """A sum of the largest amounts is exact, and so is one of negative ones."""
    database = connect()
    store = opened(database)
    rows = [sample_row(n) for n in range(40)]
    for row in rows:
        row.cost = 2**63 - 1 - row.n if row.n % 4 else -(2**63) + row.n
    store.insert([of(row) for row in rows[:20]])
    store.roll_up(100)
    store.insert([of(row) for row in rows[20:]])
    store.roll_up(100)

    assert told(database, ("tenant",)) == sums_of(rows, ("tenant",))


def test_period_ends_with_its_last_day(connect: Connect) -> None:
    """Days are those of the ledger's zone, and hours those that begin in them: a day of 25 hours has them all."""
    database = connect()
    store = opened(database)
    change = 1_792_879_200 * 10**6
    rows = [sample_row(n, at_us=change + n * 1800 * 10**6) for n in range(-4, 60)]
    for n, row in enumerate(rows):
        row.n = n
    store.insert([of(row) for row in rows])
    day = Period(date(2026, 10, 25), date(2026, 10, 25))

    assert sum(sums["calls"] for sums in told(database, ("day",), day).values()) == 50
    assert len(list(report(database, ("hour",), day))) == 25
    assert sum(line.sums["calls"] for line in report(database, ("hour",), day)) == 50


def test_row_that_is_not_taken_takes_no_other_with_it(connect: Connect) -> None:
    """A number without room is refused and said; a text that PostgreSQL does not take is made plain."""
    store = opened(connect())
    odd = sample_row(1)
    odd.user = "no\0body"
    impossible = sample_row(2)
    impossible.input_tokens = 2**64

    assert store.insert([of(sample_row(0)), of(odd), of(impossible), of(sample_row(3))]) == (3, 1)


def test_text_that_is_not_taken_is_looked_for_and_not_found(connect: Connect) -> None:
    """A database that is asked for a zero byte is there all the same."""
    opened(connect())
    database = connect()
    with database.reading() as transaction:
        assert newest_call(transaction, "tenant-1", "key-1", "req\0") is None
    assert database.num_connected == 1


class Counting:
    """A database that counts how often it is written to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.num_written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def writing(self) -> AbstractContextManager[Transaction]:
        """As `Database.writing`."""
        self.num_written += 1
        return self._database.writing()


def test_text_that_is_not_taken_costs_no_transaction_for_each_row(connect: Connect) -> None:
    """Any caller can have a zero in one of its texts, which PostgreSQL does not take."""
    opened(connect())
    database = Counting(connect())
    rows = [sample_row(n) for n in range(300)]
    rows[7].user = "no\0body"

    assert LedgerStore(database, BERLIN).insert([of(row) for row in rows]) == (300, 0)
    assert database.num_written <= 2


def test_no_two_dimensions_without_sums() -> None:
    """What cannot be told is said, with what can."""
    with pytest.raises(ConfigurationError, match="no sums are kept by user and model together: choose among day"):
        list(report(SqliteDatabase(__file__, LEDGER), ("user", "model"), ALWAYS))  # type: ignore[arg-type]  # it is not opened


def test_days_of_another_zone_are_refused(connect: Connect) -> None:
    """They would be other days from one row to the next."""
    opened(connect()).close()

    with pytest.raises(ConfigurationError, match=r"those of Europe/Berlin, and ledger\.time_zone is UTC"):
        opened(connect(), "UTC")


def test_ledger_of_a_newer_version_is_refused(connect: Connect) -> None:
    """Nothing is written to what is not known."""
    database = connect()
    opened(database)
    with database.writing() as transaction:
        transaction.execute("UPDATE settings SET value = '99' WHERE name = 'version'")

    with pytest.raises(ConfigurationError, match="newer version"):
        opened(connect())
    with pytest.raises(ConfigurationError, match="another version"):
        list(report(database, ("day",), ALWAYS))


def test_tables_have_every_field(connect: Connect) -> None:
    """A row comes back as it was noted."""
    database = connect()
    store = opened(database)
    rows = [sample_row(n) for n in range(20)]
    store.insert([of(row) for row in rows])
    names = ", ".join(f'"{name}"' for name in FIELDS)

    with database.reading() as transaction:
        found = list(transaction.fetch(f"SELECT {names} FROM calls ORDER BY n"))
    assert [tuple(row) for row in found] == [msgspec.structs.astuple(row) for row in rows]
    assert {rollup.table for rollup in ROLLUPS} == {"by_day", "by_hour", "by_user", "by_session"}


def test_postgres_that_ends_is_found_again() -> None:
    """In the middle, at once, and with nothing said: the next transaction makes a new connection."""
    from gateway.sql.postgres import PostgresDatabase

    with running_postgres() as server:
        store = opened(PostgresDatabase(server.url, LEDGER))
        rows = [of(sample_row(n)) for n in range(10)]
        store.insert(rows[:5])
        server.stop()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="PostgreSQL does not answer"):
                store.insert(rows)
        server.start()

        assert store.insert(rows) == (5, 0)
        store.close()


def test_url_of_postgres_is_looked_at(postgres: Postgres) -> None:
    """What is no URL is said at once; a database that is not there is away."""
    from gateway.sql.postgres import PostgresDatabase

    with pytest.raises(ConfigurationError, match=r"ledger\.url is no URL of PostgreSQL"):
        PostgresDatabase("postgresql://h/x?nonsense=1", LEDGER)
    with pytest.raises(StoreUnavailable, match="does not exist"):
        opened(PostgresDatabase(postgres.url + "_missing", LEDGER))


def test_database_is_the_same_whoever_asks_it(tmp_path: Path) -> None:
    """Users and passwords change, and are no part of what a journal is known by; another database is another one."""
    from gateway.sql.postgres import PostgresDatabase

    def place(url: str) -> str:
        return PostgresDatabase(url, LEDGER).place(tmp_path)

    named = "postgresql://db.internal:5432/slipstream"
    assert place("postgresql://one:secret@DB.internal/slipstream?sslmode=require") == named
    assert place("postgres:///slipstream?host=db.internal&user=two&password=other&port=5432") == named
    assert place("postgresql://slipstream@db.internal") == named
    assert place("postgresql://db.internal:5433/slipstream") != named
    assert place("postgresql://db.internal/other") != named
