"""Whose the objects are that upstreams keep, and at which backend: remembered when they are made.

In the memory of this process, bounded; where processes share something, there too, for the others and the next one.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from pathlib import Path

from backends.clock import Clock
from backends.errors import StoreUnavailable
from gateway.ledger.database import Database
from policies.owner import TTL_S, Owner, SharedOwners, pack_owner, unpack_owner

MAX_OBJECTS = 50_000
"""Kept in the memory of one process; then the oldest of the tenant with the most go."""
_MAX_ID_CHARS = 200
_TABLES = (
    "CREATE TABLE IF NOT EXISTS objects (id TEXT PRIMARY KEY, owner BLOB NOT NULL, made REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS objects_by_age ON objects (made)",
)


class Owners:
    """One per process."""

    def __init__(self, clock: Clock, shared: SharedOwners | None = None) -> None:
        self._clock = clock
        self._shared = shared
        self._made: dict[str, tuple[Owner, float]] = {}
        self._by_tenant: dict[str, OrderedDict[str, None]] = {}

    async def open(self) -> None:
        """Open what is shared. Raises: ConfigurationError."""
        if self._shared is not None:
            await self._shared.open()

    async def aclose(self) -> None:
        """Close what is shared. Safe to call twice."""
        if self._shared is not None:
            await self._shared.aclose()

    async def find(self, id: str) -> Owner | None:
        """Whose the object is; None where nobody is known to have made it."""
        if len(id) > _MAX_ID_CHARS:
            return None
        known = self._made.get(id)
        if known is not None and self._clock.now() < known[1]:
            return known[0]
        return await self._shared.find(id) if self._shared is not None else None

    async def put(self, id: str, owner: Owner) -> None:
        """Remember an object that was made. What is somebody's already stays so."""
        if len(id) > _MAX_ID_CHARS or await self.find(id) is not None:
            return
        self._forget(id)
        while len(self._made) >= MAX_OBJECTS:
            largest = max(self._by_tenant.values(), key=len)
            self._forget(next(iter(largest)))
        self._made[id] = owner, self._clock.now() + TTL_S
        self._by_tenant.setdefault(owner.tenant, OrderedDict())[id] = None
        if self._shared is not None:
            await self._shared.put(id, owner)

    def _forget(self, id: str) -> None:
        known = self._made.pop(id, None)
        if known is not None:
            tenant = known[0].tenant
            del self._by_tenant[tenant][id]
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]


class OwnersInFile:
    """Among the workers of one machine: in a SQLite file."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._database = Database(path, _TABLES)
        self._clock = clock

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

    async def put(self, id: str, owner: Owner) -> None:
        """As `SharedOwners.put`."""
        now = self._clock.wall()

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM objects WHERE made <= ?", (now - TTL_S,))
            connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", (id, pack_owner(owner), now))

        try:
            await self._database.write(change)
        except StoreUnavailable:
            return
