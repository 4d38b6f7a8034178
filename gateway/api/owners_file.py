"""Whose the objects at upstreams are, among the workers of one machine: in a SQLite file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from backends.clock import Clock
from backends.errors import StoreUnavailable
from gateway.disk.settled_wall import SettledWallClock
from gateway.disk.sqlite_file import SqliteFile
from policies.objects.owner import TTL_S, Owner, pack_owner, unpack_owner

_TABLES = (
    "CREATE TABLE IF NOT EXISTS objects (id TEXT PRIMARY KEY, owner BLOB NOT NULL, made REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS objects_by_age ON objects (made)",
)


class OwnersInFile:
    """A `SharedOwners`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._database = SqliteFile(path, _TABLES)
        self._clock = clock
        self._settled_wall = SettledWallClock(clock)

    async def open(self) -> None:
        """Open or make the file. Raises: ConfigurationError."""
        await self._database.open()

    async def aclose(self) -> None:
        """Close the file."""
        await self._database.aclose()

    async def find(self, id: str) -> Owner | None:
        """As `SharedOwners.find`."""
        oldest = self._clock.wall() - TTL_S

        def ask(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute("SELECT owner FROM objects WHERE id = ? AND made > ?", (id, oldest)).fetchone()
            return row[0] if row is not None else None

        try:
            found = await self._database.read(ask)
        except StoreUnavailable:
            return None
        return unpack_owner(found) if found is not None else None

    async def put(self, id: str, owner: Owner) -> Owner:
        """As `SharedOwners.put`."""
        now, oldest = self._clock.wall(), self._settled_wall() - TTL_S

        def change(connection: sqlite3.Connection) -> bytes:
            connection.execute("DELETE FROM objects WHERE made <= ?", (oldest,))
            connection.execute("INSERT OR IGNORE INTO objects VALUES (?, ?, ?)", (id, pack_owner(owner), now))
            kept: bytes = connection.execute("SELECT owner FROM objects WHERE id = ?", (id,)).fetchone()[0]
            return kept

        try:
            return unpack_owner(await self._database.write(change)) or owner
        except StoreUnavailable:
            return owner
