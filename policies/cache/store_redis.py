"""Answers in Redis, shared by every replica. A Redis that is down, slow or read-only costs misses and nothing else."""

from __future__ import annotations

from functools import partial

from backends.clock import Clock
from policies.cache.entry import Entry, pack_entry, unpack_entry
from policies.cache.redis_link import Command, RedisLink, Write, build_redis_link
from policies.cache.settings import RedisStore
from policies.cache.steady_wall import SteadyWallClock
from policies.cache.store import StoreStatistics

_DELETED = object()
"""Waits to be written in place of an answer that is to go."""


class RedisEntryStore:
    """Keeps entries under `<prefix>:answer:<key in hex>`, each with its time to live.

    `link` is used by this store alone, opened and closed with it. With `keeps_first`, what is there stays as it is.
    """

    def __init__(self, link: RedisLink, clock: Clock, *, keeps_first: bool = False) -> None:
        self._link = link
        self._keeps_first = keeps_first
        self._wall = SteadyWallClock(clock)
        self._hits = 0
        self._misses = 0
        self._damaged = 0

    async def open(self) -> None:
        """Open the link; a connection is made when it is first needed."""
        await self._link.open()

    async def aclose(self) -> None:
        """Write what is waiting, within a second, then disconnect. Safe to call twice."""
        await self._link.aclose()

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything put so far is written or given up, at most `timeout_s`."""
        await self._link.flush(timeout_s)

    def get_nowait(self, key: bytes) -> Entry | None:
        """The answer if it waits to be written."""
        entry = self._link.waiting((key,))
        if not isinstance(entry, Entry):
            return None
        self._hits += 1
        return entry

    async def get(self, key: bytes) -> Entry | None:
        """The answer; None where there is none, or Redis does not say so within its limit."""
        entry = self.get_nowait(key)
        if entry is not None:
            return entry
        if self._link.waiting((key,)) is not _DELETED:
            value = await self._link.value(self._name(key))
            entry = self._unpack(key, value) if isinstance(value, bytes) else None
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
        return entry

    def put(self, key: bytes, entry: Entry, ttl_s: float) -> None:
        """Have an answer written soon; dropped if it is too large, too much is waiting, or Redis is out of order."""
        self._link.write((key,), Write(partial(self._setting, key, entry, ttl_s), holds=entry), len(entry.body))

    def delete(self, key: bytes) -> None:
        """Have an answer deleted soon, also one that waits to be written; it stays where Redis is out of order."""
        self._link.write((key,), Write((("DEL", self._name(key)),), holds=_DELETED), 0)

    def wall(self) -> float:
        """See `Store.wall`."""
        return self._wall()

    def statistics(self) -> StoreStatistics:
        """A snapshot of the counters."""
        link = self._link.statistics()
        return StoreStatistics(
            hits=self._hits,
            misses=self._misses,
            entries=link.waiting,
            bytes=link.waiting_bytes,
            errors=link.errors + self._damaged,
            dropped=link.dropped,
        )

    def _name(self, key: bytes) -> str:
        return f"{self._link.prefix}:{key.hex()}"

    def _setting(self, key: bytes, entry: Entry, ttl_s: float) -> tuple[Command, ...]:
        command: Command = ("SET", self._name(key), pack_entry(key, entry), "PX", max(1, int(1000 * ttl_s)))
        return ((*command, "NX"),) if self._keeps_first else (command,)

    def _unpack(self, key: bytes, value: bytes) -> Entry | None:
        entry = unpack_entry(key, value)
        if entry is None:
            # Of another version or damaged: not read twice, unless a sound one is on its way already.
            self._damaged += 1
            if self._link.waiting((key,)) is None:
                self.delete(key)
        return entry


def build_redis_store(policy: RedisStore, clock: Clock, *, keeps_first: bool = False) -> RedisEntryStore:
    """The store that a policy file asks for; nothing is sent before it is used. `keeps_first`: see there.

    Raises: ConfigurationError as `build_redis_link` does.
    """
    link = build_redis_link(policy, clock, part="answer", name="the redis store")
    return RedisEntryStore(link, clock, keeps_first=keeps_first)
