"""A SQLite file of ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backends.errors import ConfigurationError, StoreUnavailable
from gateway.disk.private_sqlite import make_private, use_write_ahead_log
from gateway.sql.database import Purpose, RowRefused
from gateway.sql.many_rows import ManyRows

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
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._tables: dict[tuple[str, str], ManyRows] = {}

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
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[SqliteTransaction]:
        try:
            if self._connection is not None and self._identity() != self._file:
                # Taken away or replaced: what is written to the old one nobody would ever read.
                self.close()
            if self._connection is None:
                self._connection = self._connect()
                self.num_connected += 1
                self._file = self._identity()
            connection = self._connection
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
        connection = self._connection
        if connection is None or code & 0xFF != sqlite3.SQLITE_FULL:
            return False
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return True

    def _connect(self) -> sqlite3.Connection:
        if self._path.is_dir():
            raise ConfigurationError(f"{self._path} is a folder: name a file in {self._purpose.setting}")
        if not self._may_make:
            if not self._path.exists():
                raise ConfigurationError(f"there is no {self._purpose.name} {self._path} yet")
        else:
            make_private(self._path)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._check(connection)
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            if self._may_make:
                use_write_ahead_log(connection, _BUSY_S)
                connection.execute(f"PRAGMA application_id = {self._purpose.mark}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _many_rows(self, table: str, columns: str) -> ManyRows:
        known = self._tables.get((table, columns))
        if known is None:
            known = self._tables[table, columns] = ManyRows(table, columns)
        return known

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

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
