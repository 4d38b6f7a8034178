"""A SQLite file of ours."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backends.errors import ConfigurationError, StoreUnavailable
from gateway.sql.database import Purpose, RowRefused
from gateway.sql.many_rows import ManyRows
from policies.private_sqlite import OpenSqlite, make_private, use_write_ahead_log

_BUSY_S = 5.0


class SqliteDatabase:
    """A `Database`. Where there is no file one is made, if it `may_make` one."""

    seq = "INTEGER PRIMARY KEY AUTOINCREMENT"
    is_in_process = True

    def __init__(self, path: Path, purpose: Purpose, *, outlives_power: bool = False, may_make: bool = True) -> None:
        self._path = path
        self._purpose = purpose
        self._synchronous = "FULL" if outlives_power else "NORMAL"
        self._may_make = may_make
        self.num_connected = 0
        self._opened: OpenSqlite | None = None
        self._tables: dict[tuple[str, str], ManyRows] = {}

    def place(self, seen_from: Path) -> str:
        """As `Database.place`."""
        return f"sqlite:{os.path.relpath(os.path.realpath(self._path), os.path.realpath(seen_from))}"

    @contextmanager
    def writing(self) -> Iterator[SqliteTransaction]:
        """As `Database.writing`."""
        with self._transaction("BEGIN IMMEDIATE") as transaction:
            yield transaction

    @contextmanager
    def reading(self) -> Iterator[SqliteTransaction]:
        """As `Database.reading`."""
        with self._transaction("BEGIN") as transaction:
            yield transaction

    def close(self) -> None:
        """As `Database.close`."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[SqliteTransaction]:
        try:
            if self._opened is not None and not self._opened.is_there:
                # What is written to the old one nobody would ever read.
                self.close()
            if self._opened is None:
                self._opened = self._open()
                self.num_connected += 1
            connection = self._opened.connection
            connection.execute(begin)
            try:
                yield SqliteTransaction(connection, self._many_rows)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            if not self._is_full(error):
                self.close()
            raise StoreUnavailable(f"the {self._purpose.name} {self._path} does not answer: {error}") from error

    def _is_full(self, error: Exception) -> bool:
        """Whether it is only that the disk has no room: what is there can be read, and to connect anew takes room."""
        code: int = getattr(error, "sqlite_errorcode", 0)
        if self._opened is None or code & 0xFF != sqlite3.SQLITE_FULL:
            return False
        if self._opened.connection.in_transaction:
            self._opened.connection.execute("ROLLBACK")
        return True

    def _open(self) -> OpenSqlite:
        if self._path.is_dir():
            raise ConfigurationError(f"{self._path} is a folder: name a file in {self._purpose.setting}")
        if not self._may_make:
            if not self._path.exists():
                raise ConfigurationError(f"there is no {self._purpose.name} {self._path} yet")
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            make_private(self._path)
        return OpenSqlite(self._path, self._set_up, wait_s=_BUSY_S)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        self._check(connection)
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        if self._may_make:
            use_write_ahead_log(connection, _BUSY_S)
            connection.execute(f"PRAGMA application_id = {self._purpose.mark}")

    def _many_rows(self, table: str, columns: str) -> ManyRows:
        known = self._tables.get((table, columns))
        if known is None:
            known = self._tables[table, columns] = ManyRows(table, columns)
        return known

    def _check(self, connection: sqlite3.Connection) -> None:
        try:
            # In this order: whoever makes the file at this moment marks it before it makes tables.
            (num_tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise ConfigurationError(f"the {self._purpose.name} {self._path} cannot be used: {error}") from error
            raise
        if application != self._purpose.mark and num_tables:
            raise ConfigurationError(
                f"{self._path} is a SQLite file of something else: name another one in {self._purpose.setting}"
            )


class SqliteTransaction:
    """A `Transaction`."""

    def __init__(self, connection: sqlite3.Connection, many_rows: Callable[[str, str], ManyRows]) -> None:
        self._connection = connection
        self._many_rows = many_rows

    def execute(self, sql: str, values: Sequence[object] = ()) -> int:
        """As `Transaction.execute`."""
        return self._connection.execute(sql, values).rowcount

    def fetch(self, sql: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """As `Transaction.fetch`."""
        return self._connection.execute(sql, values)

    def columns(self, table: str) -> list[str]:
        """As `Transaction.columns`."""
        return [name for (name,) in self.fetch("SELECT name FROM pragma_table_info(?)", (table,))]

    def insert(self, table: str, names: str, columns: Sequence[Sequence[Any]]) -> int:
        """As `Transaction.insert`."""
        try:
            return self._many_rows(table, names).add(self._connection, columns)
        except (OverflowError, UnicodeEncodeError, sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise RowRefused(str(error)) from error
