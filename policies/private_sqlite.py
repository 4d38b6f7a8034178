"""SQLite files that only their owner reads: made, opened and left by any number of processes at once, and whose place
another file may take meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PAUSE_S = 0.01


def make_private(path: Path) -> None:
    """Make an empty file where there is none; SQLite's further files have its mode. Raises: OSError.

    A file that is there is not even opened: to close it would take away the locks that SQLite has on it in this process
    (POSIX locks belong to a process, not to a descriptor), and another process that believes itself alone with the file
    then deletes a write-ahead log that is still written to.
    """
    if path.exists():
        return
    place = _place(path)
    with _alone_in(place.parent), suppress(FileExistsError):
        if not place.exists():
            # Of one that was taken away without them, and others may still have it open.
            _take_log_away(place)
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


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


class OpenSqlite:
    """A file that is there, open from its making until `close`, of one thread at a time.

    It may be taken away meanwhile, or a backup put in its place, and SQLite does not look: it goes on with a file that
    nobody finds any more. Its log stays where it was, and whoever opens the other file reads that into it.
    """

    def __init__(self, path: Path, set_up: Callable[[sqlite3.Connection], None], *, wait_s: float) -> None:
        """`set_up`: the connection, before anything else is done with it. `wait_s`: for others that write.

        Raises: sqlite3.Error, OSError, and as `set_up` does.
        """
        self._path = path
        self._place = _place(path)
        self._file = _identity(self._place)
        # Only as a URL can it be said that none is to be made.
        self.connection = sqlite3.connect(
            f"{self._place.as_uri()}?mode=rw", uri=True, timeout=wait_s, isolation_level=None, check_same_thread=False
        )
        try:
            set_up(self.connection)
            self._log = _identity(_log(self._place))
            if not self.is_there:
                raise sqlite3.OperationalError("it was replaced while it was opened")
        except BaseException:
            self.connection.close()
            raise

    @property
    def is_there(self) -> bool:
        """Whether its path still leads to it, and to its log."""
        return (_identity(self._path), _identity(_log(self._place))) == (self._file, self._log)

    def close(self) -> None:
        """Let go of it; where another one has its place, that one finds no log of this one."""
        with suppress(OSError):
            if _identity(self._place) != self._file:
                self._take_log_along()
        self.connection.close()

    def _take_log_along(self) -> None:
        with suppress(sqlite3.Error):
            # What was moved elsewhere is whole then.
            self.connection.execute("PRAGMA wal_checkpoint").fetchall()
        with _alone_in(self._place.parent):
            if self._log is not None and _identity(_log(self._place)) == self._log:
                _take_log_away(self._place)


def _place(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _log(place: Path) -> Path:
    return place.with_name(f"{place.name}-wal")


def _take_log_away(place: Path) -> None:
    """With its index, which is where processes look first."""
    for end in ("-wal", "-shm"):
        place.with_name(place.name + end).unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Among all who make a SQLite file there, or leave one whose place is another's, as far as the disk has locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
