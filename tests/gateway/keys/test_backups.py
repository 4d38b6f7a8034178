"""A backup of the key store that is put back, and changed afterwards: who had read further finds out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.keys.key_store import COPY, KEYS, KeyStore
from gateway.keys.raise_store import AskedRaise
from gateway.sql.database import Database
from gateway.sql.sqlite import SqliteDatabase
from policies.keys.settings import KeyTerms
from tests.gateway.keys.conftest import Connect
from tests.support.clock import FakeClock

Backup = dict[str, list[tuple[Any, ...]]]
_KEPT = ("api_keys", "api_key_changes", "budget_raises")


def opened(connect: Connect, clock: FakeClock | None = None) -> KeyStore:
    store = KeyStore(connect(), clock or FakeClock())
    store.open()
    return store


def all_of(database: Database) -> Backup:
    with database.reading() as transaction:
        return {table: list(transaction.fetch(f"SELECT * FROM {table}")) for table in _KEPT}


def put_back(database: Database, backup: Backup) -> None:
    with database.writing() as transaction:
        for table, rows in backup.items():
            transaction.execute(f"DELETE FROM {table}")
            for row in rows:
                transaction.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


@pytest.mark.parametrize("num_since", [1, 2])
def test_backup_that_was_put_back_and_changed_as_often_is_read_anew(connect: Connect, num_since: int) -> None:
    """Its versions are those of changes that are gone: who went by them would let in whom it lacks, and miss others."""
    database, store = connect(), opened(connect)
    store.create("alice", KeyTerms())
    backup = all_of(database)
    store.create("bob", KeyTerms())
    mark = store.mark()
    put_back(database, backup)
    made = [f"key-{number}" for number in range(num_since)]
    for name in made:
        store.create(name, KeyTerms())

    changes = store.changes(mark)
    assert changes.are_all
    assert [row[0] for row in changes.rows] == ["alice", *made]
    assert store.changes(changes.mark).rows == []


def test_copy_of_a_store_that_was_put_back_lets_nobody_else_in(tmp_path: Path) -> None:
    """Nor does the one of a gateway that was away meanwhile."""
    database = SqliteDatabase(tmp_path / "keys.sqlite3", KEYS)
    store = KeyStore(database, FakeClock())
    copy = KeyStore(SqliteDatabase(tmp_path / "copy.sqlite3", COPY), FakeClock())
    for each in (store, copy):
        each.open()
    store.create("alice", KeyTerms())
    backup = all_of(database)
    store.create("bob", KeyTerms())
    copy.follow(store.changes(copy.mark()))
    put_back(database, backup)
    store.create("carl", KeyTerms())
    copy.follow(store.changes(copy.mark()))

    assert copy.mark() == store.mark()
    assert [key.name for key in copy.page(10)] == ["alice", "carl"]


def test_store_of_a_version_without_tokens_is_read_and_written(connect: Connect) -> None:
    """One that nobody has opened since, as for a command that comes first after an upgrade."""
    database, store = connect(), opened(connect)
    store.create("alice", KeyTerms())
    with database.writing() as transaction:
        transaction.execute("DROP TABLE api_key_changes")
    before = store.mark()
    assert store.changes(before).rows == []
    store.revoke("alice")

    changes = store.changes(before)
    assert [row[0] for row in changes.rows] == ["alice"]
    assert not changes.are_all


def test_raise_after_a_backup_was_put_back_is_another_one(connect: Connect) -> None:
    """Though it has the number of one that is gone."""
    clock = FakeClock()
    database, store = connect(), opened(connect, clock)
    backup = all_of(database)
    store.raises.add(AskedRaise("budget", "alice", 1, clock.wall() + 60, "why"), "root")
    before = store.raises.last()
    put_back(database, backup)
    clock.jump(1.0)
    store.raises.add(AskedRaise("budget", "bob", 1, clock.wall() + 60, "why"), "root")

    assert before is not None
    assert store.raises.last() not in (before, None)
