"""Ledgers that older gateways have made: opened by this one they have what it needs, and older ones go on writing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from backends.errors import ConfigurationError
from gateway.ledger.days import Days
from gateway.ledger.percentiles import spreads
from gateway.ledger.report import Period, report
from gateway.ledger.row import Row
from gateway.ledger.schema import quoted
from gateway.ledger.store import LedgerStore
from gateway.sql.database import Database
from tests.gateway.ledger.conftest import Connect
from tests.support.ledger import sample_row

ALWAYS = Period(None, None)
FIRST = Path(__file__).with_name("first_tables.sql").read_text()
FIRST_FIELDS = FIRST.partition("CREATE TABLE calls (seq {seq}, ")[2].partition(", UNIQUE")[0]


def write_as_the_first(database: Database, rows: list[Row]) -> None:
    """Rows as a gateway of then writes them: it names the columns that it knows."""
    names = [definition.split()[0] for definition in FIRST_FIELDS.split(",")]
    columns = ", ".join(names)
    days = Days("UTC")
    values = []
    for row in rows:
        known = {**msgspec.structs.asdict(row), "worker": 1, "day": days.of(row.at_us)}
        values.append([known[name.strip('"')] for name in names])
    with database.writing() as transaction:
        transaction.insert("calls", columns, list(zip(*values, strict=True)))


def made_by_the_first(database: Database) -> None:
    with database.writing() as transaction:
        for statement in FIRST.partition("\n")[2].replace("{seq}", database.seq).split(";"):
            if statement.strip():
                transaction.execute(statement)
        transaction.execute("INSERT INTO settings VALUES ('version', '1'), ('time_zone', 'UTC')")


def calls_of(database: Database) -> int:
    return sum(line.sums["calls"] for line in report(database, ("tenant",), ALWAYS))


def timed(database: Database) -> int:
    return sum(spread.calls for spread in spreads(database, (), ALWAYS) if spread.measure == "total")


def test_ledger_of_before_has_its_rows_counted_by_and_by(connect: Connect) -> None:
    """Also those that its sums had already, and those that old gateways add; nothing is read before it was opened."""
    database = connect()
    made_by_the_first(database)
    rows = [sample_row(n) for n in range(200)]
    fine = sum(row.status < 400 for row in rows)
    write_as_the_first(database, rows[:150])
    with database.writing() as transaction:
        transaction.execute("UPDATE marks SET value = 100 WHERE name = 'rolled_up'")
    with pytest.raises(ConfigurationError, match="another version"):
        calls_of(database)
    with database.writing() as transaction:
        transaction.execute("UPDATE marks SET value = 0 WHERE name = 'rolled_up'")

    store = LedgerStore(connect(), "UTC")
    store.open()
    assert calls_of(database) == 150
    write_as_the_first(database, rows[150:])
    for _ in range(9):
        assert calls_of(database) == 200
        assert timed(database) == fine
        store.count_latencies(30)
        store.roll_up(30)
    with database.reading() as transaction:
        assert list(transaction.fetch("SELECT SUM(calls) FROM latencies_by_day WHERE measure = 'total'")) == [(fine,)]


def test_counts_that_a_ledger_lacks_are_made_of_others(connect: Connect) -> None:
    """A table of counts that is new says what those say that have counted for long, and goes on from there."""
    database = connect()
    store = LedgerStore(connect(), "UTC")
    store.open()
    rows = [sample_row(n) for n in range(200)]
    write_as_the_first(database, rows[:150])
    store.count_latencies(100)
    before = list(spreads(database, ("hour", "route"), ALWAYS))
    with database.writing() as transaction:
        transaction.execute("DROP TABLE latencies_by_route_and_hour")

    store = LedgerStore(connect(), "UTC")
    store.open()
    assert list(spreads(database, ("hour", "route"), ALWAYS)) == before
    write_as_the_first(database, rows[150:])
    while store.count_latencies(100):
        pass
    assert timed(database) == sum(row.status < 400 for row in rows)


def test_sums_of_before_stay_where_calls_are_told_apart_by_more(connect: Connect) -> None:
    """Nobody had asked which program it was: those sums have none, and are in all others."""
    database = connect()
    made_by_the_first(database)
    rows = [msgspec.structs.replace(sample_row(n), agent=f"program-{n % 2}") for n in range(100)]
    write_as_the_first(database, rows)
    with database.writing() as transaction:
        keys = {"day": 20261101, "hour": 500_000, "tenant": "acme", "team": "", "key": "k", "route": "all"}
        keys |= {"operation": "chat", "backend": "up", "model": "m"}
        for table in ("by_day", "by_hour"):
            names = transaction.columns(table)
            values = tuple(keys.get(name, 7 * (name == "calls")) for name in names)
            transaction.execute(f"INSERT INTO {table} ({quoted(names)}) VALUES ({', '.join('?' * len(names))})", values)

    store = LedgerStore(connect(), "UTC")
    store.open()
    while store.roll_up(30):
        pass

    for by in (("agent",), ("hour", "agent")):
        calls: Counter[str] = Counter()
        for line in report(database, by, ALWAYS):
            calls[line.values[-1]] += line.sums["calls"]
        assert calls == {"": 7, "program-0": 50, "program-1": 50}
    assert calls_of(database) == 107


def test_ledger_is_the_same_however_it_came_to_be(connect: Connect) -> None:
    """Opened twice, new or old, it has the same tables with the same columns."""
    database = connect()
    made_by_the_first(database)
    names = ("calls", "by_day", "by_hour", "by_user", "by_session", "latencies_by_route")
    names += ("latencies_by_day", "latencies_by_hour", "latencies_by_route_and_hour", "marks", "samples")

    def columns() -> dict[str, set[str]]:
        with database.reading() as transaction:
            return {name: set(transaction.columns(name)) for name in names}

    LedgerStore(connect(), "UTC").open()
    upgraded = columns()
    with database.writing() as transaction:
        for name in (*names, "settings"):
            transaction.execute(f"DROP TABLE {name}")
    for _ in range(2):
        LedgerStore(connect(), "UTC").open()
        assert columns() == upgraded


def test_columns_that_came_later_are_added_to_rows_and_sums(connect: Connect) -> None:
    """What is of before has nothing there: not known in a row, 0 in a sum."""
    database = connect()
    store = LedgerStore(database, "UTC")
    store.open()
    write_as_the_first(database, [sample_row(n) for n in range(20)])
    store.roll_up(10)
    with database.writing() as transaction:
        transaction.execute("ALTER TABLE calls DROP COLUMN saved_extra")
        transaction.execute("ALTER TABLE by_day DROP COLUMN saved_extra_pico")
        transaction.execute("ALTER TABLE by_day DROP COLUMN saved_extra_micro")

    store.open()

    with database.reading() as transaction:
        assert list(transaction.fetch("SELECT DISTINCT saved_extra FROM calls")) == [(None,)]
    lines = list(report(database, ("tenant", "team"), ALWAYS))
    assert sum(line.sums["calls"] for line in lines) == 20
    assert {line.sums["saved_extra_pico"] for line in lines} == {0}
