"""Files of tenants: rows in the database, bytes in a folder beside it.

A file's bytes are there before its row and gone after it, so that whoever finds a row finds the bytes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from sqlite3 import Connection

from backends.clock import Clock
from backends.errors import InvalidRequest, QuotaExceeded, UnknownObject
from gateway.batches.records import FileRow, Tenant, column_list
from gateway.disk.settled_wall import SettledWallClock
from gateway.disk.sqlite_file import SqliteFile
from policies.batches.settings import BatchesStore

_COLUMNS = column_list(FileRow)
_FORGOTTEN_S = 86400.0
"""An upload that has lain so long was never finished."""


class FileStore:
    """All files. `new_part` names a file to write to, `add` makes it one of a tenant's."""

    def __init__(self, database: SqliteFile, limits: BatchesStore, clock: Clock) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock
        self._settled_wall = SettledWallClock(clock)
        folder = Path(limits.folder)
        self._files = folder / "files"
        self._parts = folder / "parts"
        self._inputs = folder / "inputs"

    async def open(self) -> None:
        """Make the folders. Raises: OSError."""
        for folder in (self._files, self._parts, self._inputs):
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)

    def path(self, id: str) -> Path:
        """Where a file's bytes are."""
        return self._files / id

    def input_path(self, batch_id: str) -> Path:
        """Where a batch's input is: a name of its own for the bytes of its file, which may be deleted meanwhile."""
        return self._inputs / batch_id

    def new_part(self) -> Path:
        """A name for something that is being written."""
        return self._parts / secrets.token_hex(16)

    async def check_room(self, tenant: Tenant, num_bytes: int) -> None:
        """Whether a file of about that size would be taken, before it comes. Raises: QuotaExceeded."""
        await self._database.read(lambda connection: self._check_room(connection, tenant, num_bytes))

    async def add(self, tenant: Tenant, part: Path, filename: str, purpose: str, keep_s: int | None = None) -> FileRow:
        """Make a part, which ends with that, a file of the tenant. Raises: QuotaExceeded."""

        def change(connection: Connection) -> FileRow:
            self._check_room(connection, tenant, part.stat().st_size)
            return self.insert(connection, tenant, part, filename=filename, purpose=purpose, keep_s=keep_s)

        return await self._database.write(change)

    def insert(
        self,
        connection: Connection,
        tenant: Tenant,
        part: Path,
        *,
        filename: str,
        purpose: str,
        keep_s: int | None = None,
    ) -> FileRow:
        """As `add`, within a transaction and whatever the tenant has already: results are never refused."""
        file_id = f"file-{secrets.token_hex(12)}"
        now = int(self._clock.wall())
        expires_at = now + int(min(self._limits.keep, keep_s if keep_s is not None else self._limits.keep))
        num_bytes = part.stat().st_size
        part.replace(self.path(file_id))
        values = (file_id, tenant, filename, purpose, num_bytes, now, expires_at)
        cursor = connection.execute(
            "INSERT INTO files (id, tenant, filename, purpose, num_bytes, created_at, expires_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            values,
        )
        assert cursor.lastrowid is not None, "a row was added"
        return FileRow(cursor.lastrowid, *values)

    async def get(self, tenant: Tenant, id: str) -> FileRow:
        """One file of the tenant. Raises: UnknownObject."""
        return await self._database.read(lambda connection: self.find(connection, tenant, id))

    def find(self, connection: Connection, tenant: Tenant, id: str) -> FileRow:
        """As `get`, with a connection at hand."""
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND id = ? AND expires_at > ?",
            (tenant, id, self._clock.wall()),
        ).fetchone()
        if row is None:
            raise UnknownObject(f"there is no file {id[:64]!r}", param="file_id")
        return FileRow(*row)

    async def listing(
        self, tenant: Tenant, *, limit: int, after: str | None, purpose: str | None, ascending: bool
    ) -> tuple[Sequence[FileRow], bool]:
        """The tenant's files, newest first unless told otherwise, and whether there are more. Raises: UnknownObject."""
        comparison, order = (">", "ASC") if ascending else ("<", "DESC")

        def ask(connection: Connection) -> list[FileRow]:
            start = self.find(connection, tenant, after).seq if after is not None else None
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND expires_at > ? AND (? IS NULL OR purpose = ?) "
                f"AND (? IS NULL OR seq {comparison} ?) ORDER BY seq {order} LIMIT ?",
                (tenant, self._clock.wall(), purpose, purpose, start, start, limit + 1),
            )
            return [FileRow(*row) for row in rows]

        found = await self._database.read(ask)
        return found[:limit], len(found) > limit

    async def delete(self, tenant: Tenant, id: str) -> None:
        """Delete it; a batch that reads it keeps the bytes until it is done. Raises: UnknownObject."""

        def change(connection: Connection) -> None:
            self.find(connection, tenant, id)
            connection.execute("DELETE FROM files WHERE id = ?", (id,))

        await self._database.write(change)
        await asyncio.to_thread(self.path(id).unlink, missing_ok=True)

    async def sweep(self) -> int:
        """Delete what has expired, and what a process that ended left behind. Returns the bytes that are stored."""

        def change(connection: Connection) -> tuple[list[str], int]:
            gone = connection.execute("DELETE FROM files WHERE expires_at <= ? RETURNING id", (self._settled_wall(),))
            ids = [name for (name,) in gone.fetchall()]
            (stored,) = connection.execute("SELECT COALESCE(SUM(num_bytes), 0) FROM files").fetchone()
            connection.execute("PRAGMA incremental_vacuum(2000)").fetchall()
            return ids, stored

        ids, stored = await self._database.write(change)
        known = await self._database.read(
            lambda connection: (
                {name for (name,) in connection.execute("SELECT id FROM files")}
                | {name for (name,) in connection.execute("SELECT id FROM batches")}
            )
        )
        await asyncio.to_thread(self._unlink, ids, known)
        return stored

    def _unlink(self, ids: Sequence[str], known: set[str]) -> None:
        for name in ids:
            self.path(name).unlink(missing_ok=True)
        forgotten_at = self._settled_wall() - _FORGOTTEN_S
        for folder in (self._files, self._parts, self._inputs):
            for entry in os.scandir(folder):
                # Not when it was written: the input of a batch that is being made may be an old file's.
                if entry.name not in known and entry.stat().st_ctime < forgotten_at:
                    Path(entry.path).unlink(missing_ok=True)

    def _check_room(self, connection: Connection, tenant: Tenant, num_bytes: int) -> None:
        count, stored = connection.execute(
            "SELECT COUNT(*), COALESCE(SUM(num_bytes), 0) FROM files WHERE tenant = ?", (tenant,)
        ).fetchone()
        if count >= self._limits.max_files:
            raise QuotaExceeded(f"there are {count} files already, as many as may be stored; delete some")
        total, limit = stored + num_bytes, self._limits.max_size
        if total > limit:
            raise QuotaExceeded(f"all files would have {total} bytes, and {limit} may be stored; delete some")


def append(part: Path, content: bytes) -> None:
    """Add to a part, which begins with that. Raises: OSError."""
    with part.open("ab") as file:
        file.write(content)


def parse_limit(text: str | None, default: int, maximum: int) -> int:
    """A page's length as a query says it. Raises: InvalidRequest."""
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= maximum):
        raise InvalidRequest(f"limit is a number from 1 to {maximum}", param="limit")
    return int(text)
