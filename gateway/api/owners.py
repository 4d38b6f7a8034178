"""Whose the objects are that upstreams keep, and at which backend: remembered when they are made.

In the memory of this process, bounded; where processes share something, there too, for the others and the next one.
"""

from __future__ import annotations

from collections import OrderedDict

from backends.clock import Clock
from policies.objects.owner import TTL_S, Owner, SharedOwners

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
        self._sizes = _Sizes()

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

    def note_nowait(self, id: str, owner: Owner) -> bool:
        """Remember an object that was made, in this process; False where it is somebody's here already."""
        known = self._made.get(id)
        if len(id) > _MAX_ID_CHARS or (known is not None and self._clock.now() < known[1]):
            return False
        self._forget(id)
        while len(self._made) >= MAX_OBJECTS:
            self._forget(next(iter(self._by_tenant[self._sizes.largest])))
        self._remember(id, owner)
        return True

    async def put(self, id: str, owner: Owner) -> None:
        """Remember an object that was made. What is somebody's already stays so."""
        if self.note_nowait(id, owner):
            await self.share(id, owner)

    async def share(self, id: str, owner: Owner) -> None:
        """Let the others know of an object that was noted here. Where it was somebody's there, it is here too."""
        if self._shared is not None and (first := await self._shared.put(id, owner)) != owner:
            self._forget(id)
            self._remember(id, first)

    def _remember(self, id: str, owner: Owner) -> None:
        self._made[id] = owner, self._clock.now() + TTL_S
        made = self._by_tenant.setdefault(owner.tenant, OrderedDict())
        made[id] = None
        self._sizes.change(owner.tenant, len(made) - 1, len(made))

    def _forget(self, id: str) -> None:
        known = self._made.pop(id, None)
        if known is not None:
            tenant = known[0].tenant
            made = self._by_tenant[tenant]
            del made[id]
            self._sizes.change(tenant, len(made) + 1, len(made))
            if not made:
                del self._by_tenant[tenant]


class _Sizes:
    """Tenants by how many objects are theirs: who has the most is found at once, however many there are."""

    def __init__(self) -> None:
        self._tenants: dict[int, dict[str, None]] = {}
        self._most = 0

    @property
    def largest(self) -> str:
        """Who has the most; there is somebody."""
        return next(iter(self._tenants[self._most]))

    def change(self, tenant: str, before: int, after: int) -> None:
        """A tenant has one more or one less."""
        if before:
            of_size = self._tenants[before]
            del of_size[tenant]
            if not of_size:
                del self._tenants[before]
        if after:
            self._tenants.setdefault(after, {})[tenant] = None
        # Whoever had the most has at least one less now, and others have no more than that.
        self._most = max(self._most, after) if after > before else self._most - (self._most not in self._tenants)
