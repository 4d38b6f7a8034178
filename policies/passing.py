"""Failures of a disk that are mended from outside: with these a store goes on without it, or with what it can read."""

from __future__ import annotations

import errno
import sqlite3

_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE}
)
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_passing(error: OSError) -> bool:
    """Whether the disk is full, read-only, forbidden or broken; not where the path itself is wrong."""
    return error.errno in _ERRNOS


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the file itself is none of its own, or not whole: everything else may pass."""
    # Extended codes have the plain one in their lowest byte. An error without one is not of the file.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
