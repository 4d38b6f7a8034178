"""Whose the objects at upstreams are, among replicas: in Redis, kept as answers are."""

from __future__ import annotations

import hashlib

from backends.clock import Clock
from policies.cache.entry import AnswerForm, Entry
from policies.cache.settings import RedisStore
from policies.cache.store_redis import RedisEntryStore, build_redis_store
from policies.objects.owner import TTL_S, Owner, pack_owner, unpack_owner

_FLUSH_S = 0.25


class OwnersInRedis:
    """A `SharedOwners`. The store is its own, opened and closed with it."""

    def __init__(self, store: RedisEntryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def open(self) -> None:
        """Open the store."""
        await self._store.open()

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()

    async def find(self, id: str) -> Owner | None:
        """As `SharedOwners.find`."""
        entry = await self._store.get(_key(id))
        return unpack_owner(entry.body) if entry is not None else None

    async def put(self, id: str, owner: Owner) -> Owner:
        """As `SharedOwners.put`: waits a moment for the store to have it."""
        body = pack_owner(owner)
        self._store.put(_key(id), Entry(AnswerForm.JSON, body, b"", self._clock.wall()), TTL_S)
        await self._store.flush(_FLUSH_S)
        return await self.find(id) or owner


def build_owners_redis(policy: RedisStore, clock: Clock) -> OwnersInRedis:
    """For the Redis of a policy file. Raises: ConfigurationError as `build_redis_store` does."""
    prefixed = policy.model_copy(update={"prefix": f"{policy.prefix}:objects"})
    return OwnersInRedis(build_redis_store(prefixed, clock, keeps_first=True), clock)


def _key(id: str) -> bytes:
    return hashlib.sha256(b"slipstream object " + id.encode("utf-8", "surrogatepass")).digest()
