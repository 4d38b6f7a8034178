"""Whose the objects are that upstreams keep, and at which backend: remembered when they are made.

In the memory of this process, bounded; where processes share something, there too, for the others and the next one.
"""

from __future__ import annotations

from collections import OrderedDict

from backends.clock import Clock
from policies.owner import TTL_S, Owner, SharedOwners

MAX_OBJECTS = 50_000
"""Kept in the memory of one process; then the oldest of the tenant with the most go."""
_MAX_ID_CHARS = 200


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
