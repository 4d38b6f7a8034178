"""Each test of a store runs against SQLite, and against a PostgreSQL of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.keys.key_store import KEYS
from gateway.sql.database import Database
from gateway.sql.postgres import PostgresDatabase
from gateway.sql.sqlite import SqliteDatabase
from tests.support.ledger import Postgres, running_postgres

Connect = Callable[[], Database]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server."""
    with running_postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Makes connections to one empty database."""
    made: list[Database] = []

    def kept(database: Database) -> Database:
        made.append(database)
        return database

    if request.param == "sqlite":
        yield lambda: kept(SqliteDatabase(tmp_path / "keys.sqlite3", KEYS))
    else:
        server: Postgres = request.getfixturevalue("postgres")
        database = kept(PostgresDatabase(server.url, KEYS))
        with database.writing() as transaction:
            transaction.execute("DROP SCHEMA public CASCADE")
            transaction.execute("CREATE SCHEMA public")
        yield lambda: kept(PostgresDatabase(server.url, KEYS))
    for each in made:
        each.close()
