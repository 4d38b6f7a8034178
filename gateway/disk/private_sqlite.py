"""SQLite files that only their owner reads, made and opened by any number of workers at once."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

_PAUSE_S = 0.01


def make_private(path: Path) -> None:
    """Make an empty file and its folder where there is none; SQLite's further files have its mode. Raises: OSError.

    A file that is there is not even opened: to close it would take away the locks that SQLite has on it in this process
    (POSIX locks belong to a process, not to a descriptor), and another process that believes itself alone with the file
    then deletes a write-ahead log that is still written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def use_write_ahead_log(connection: sqlite3.Connection, wait_s: float) -> None:
    """Have the file keep one, from now on and for everybody. Raises: sqlite3.Error.

    Others may be about the same, and for this SQLite does not wait by itself, whatever its timeout.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)
