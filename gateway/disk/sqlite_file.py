"""One SQLite file, one connection, one thread: changes happen one after the other, each whole or not at all.

Several workers of one machine may have the same file open; the tables are those of whoever brings them.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from backends.errors import ConfigurationError, StoreUnavailable
from policies.passing import is_damaged, is_passing
from policies.private_sqlite import OpenSqlite, make_private, use_write_ahead_log

_logger = logging.getLogger(__name__)
_VERSION = 1
_BUSY_S = 10.0
_T = TypeVar("_T")


class SqliteFile:
    """The file. `tables` are the SQL statements that create the tables that it does not have yet.

    One that is replaced meanwhile is gone on with. One that is taken away is made anew, or, where it `is_waited_for`,
    missed until it is put back.
    """

    def __init__(self, path: Path, tables: Sequence[str], *, is_waited_for: bool = False) -> None:
        self._path = path
        self._tables = tables
        self._is_waited_for = is_waited_for
        self._opened: OpenSqlite | None = None
        self._is_made = False
        self._is_open = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slipstream-disk")

    async def open(self) -> None:
        """Open or make it. Where its disk is full, read-only or broken, whoever uses it tries again.

        Raises: ConfigurationError.
        """
        self._is_open = True
        try:
            await self.read(lambda connection: None)
        except StoreUnavailable as error:
            problem = error.__cause__
            if not _may_pass(problem):
                raise ConfigurationError(f"{self._path} cannot be used: {problem}") from error
            _logger.error("%s cannot be used for now: %s", self._path, problem)

    async def aclose(self) -> None:
        """Finish what has begun, and close. Safe to call twice."""
        if self._is_open:
            self._is_open = False
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def read(self, ask: Callable[[sqlite3.Connection], _T]) -> _T:
        """The result of `ask`, which runs in the file's thread. Raises: StoreUnavailable, and what `ask` raises."""
        return await self._run(ask)

    async def write(self, change: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `change` as one transaction, which is completed even if the caller is cancelled. Raises: as `read`."""
        return await self._run(partial(_transact, change=change))

    async def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if not self._is_open:
            raise StoreUnavailable(f"{self._path.name} is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)
        except OSError as error:
            raise StoreUnavailable(f"{self._path.name} does not answer: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path.name} does not answer: {error}") from error

    def _work(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._opened is not None and not self._opened.is_there:
            self._close()
        if self._opened is None:
            if not (self._is_made and self._is_waited_for):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                make_private(self._path)
            self._opened = OpenSqlite(self._path, self._set_up, wait_s=_BUSY_S)
            self._is_made = True
        return work(self._opened.connection)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        use_write_ahead_log(connection, _BUSY_S)
        connection.execute("PRAGMA synchronous = NORMAL")
        _transact(connection, self._make_tables)

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise ConfigurationError(f"{self._path} was written by a newer version of the gateway")
        for statement in self._tables:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _may_pass(problem: BaseException | None) -> bool:
    if isinstance(problem, OSError):
        return is_passing(problem)
    return isinstance(problem, sqlite3.OperationalError) and not is_damaged(problem)


def _transact(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], _T]) -> _T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = change(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return done
