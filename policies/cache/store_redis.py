"""Answers in Redis, shared by every replica. A Redis that is down, slow or read-only costs misses and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError
from policies.cache.entry import Entry, pack_entry, unpack_entry
from policies.cache.redis_queues import Breaker, ReadQueue, WriteQueue
from policies.cache.steady_wall import SteadyWallClock
from policies.cache.store import StoreStatistics
from policies.schema import RedisStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

_NUM_READERS = 4
_SOCKET_TIMEOUT_S = 1.0
_FLUSH_TIMEOUT_S = 1.0
_NAME = "the redis store"


class _Write(msgspec.Struct, frozen=True):
    """An answer on its way to Redis; without an entry the key is to be deleted."""

    entry: Entry | None
    ttl_s: float


class RedisEntryStore:
    """Keeps entries under `<prefix>:answer:<key in hex>`, each with its time to live.

    `client` is used by this store alone and closed with it. A look-up waits at most `timeout_s`. What is waiting to
    be written is bounded; more than that is dropped and counted. With `keeps_first`, what is there stays as it is.
    """

    def __init__(
        self, client: Redis, clock: Clock, *, prefix: str, timeout_s: float, keeps_first: bool = False
    ) -> None:
        self._client = client
        self._keeps_first = keeps_first
        self._wall = SteadyWallClock(clock)
        self._prefix = f"{prefix}:answer:"
        self._reads: ReadQueue[bytes, Entry] = ReadQueue(
            self._fetch, Breaker(clock, timeout_s, _NAME), timeout_s=timeout_s
        )
        self._writes: WriteQueue[bytes, _Write] = WriteQueue(self._write, Breaker(clock, timeout_s, _NAME))
        self._hits = 0
        self._misses = 0
        self._damaged = 0

    async def open(self) -> None:
        """Start the tasks; a connection is made when it is first needed."""
        self._reads.start(_NUM_READERS)
        self._writes.start()

    async def aclose(self) -> None:
        """Write what is waiting, within a second, then disconnect. Safe to call twice."""
        await self._writes.aclose(_FLUSH_TIMEOUT_S)
        await self._reads.aclose()
        await self._client.aclose()

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything put so far is written or given up, at most `timeout_s`."""
        await self._writes.flush(timeout_s)

    def get_nowait(self, key: bytes) -> Entry | None:
        """The answer if it waits to be written."""
        write = self._writes.get_nowait(key)
        if write is None or write.entry is None:
            return None
        self._hits += 1
        return write.entry

    async def get(self, key: bytes) -> Entry | None:
        """The answer; None where there is none, or Redis does not say so within `timeout_s`."""
        entry = self.get_nowait(key)
        if entry is not None:
            return entry
        entry = await self._reads.get(key)
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
        return entry

    def put(self, key: bytes, entry: Entry, ttl_s: float) -> None:
        """Have an answer written soon; dropped if it is too large, too much is waiting, or Redis is out of order."""
        self._writes.put(key, _Write(entry, ttl_s), len(entry.body))

    def wall(self) -> float:
        """See `Store.wall`."""
        return self._wall()

    def statistics(self) -> StoreStatistics:
        """A snapshot of the counters."""
        return StoreStatistics(
            hits=self._hits,
            misses=self._misses,
            entries=len(self._writes),
            bytes=self._writes.num_bytes,
            errors=self._reads.num_errors + self._writes.num_errors + self._damaged,
            dropped=self._writes.num_dropped,
        )

    async def _fetch(self, keys: list[bytes]) -> list[Entry | None]:
        values = await self._client.mget([self._prefix + key.hex() for key in keys])
        return [self._unpack(key, value) for key, value in zip(keys, values, strict=True)]

    def _unpack(self, key: bytes, value: object) -> Entry | None:
        if not isinstance(value, bytes):
            return None
        entry = unpack_entry(key, value)
        if entry is None:
            self._damaged += 1
            if self._writes.get_nowait(key) is None:
                self._writes.put(key, _Write(None, 0.0), 0)
        return entry

    async def _write(self, batch: list[tuple[bytes, _Write]]) -> list[Exception]:
        pipeline = self._client.pipeline(transaction=False)
        for key, write in batch:
            name = self._prefix + key.hex()
            if write.entry is None:
                pipeline.delete(name)
            else:
                ttl_ms = max(1, int(1000 * write.ttl_s))
                pipeline.set(name, pack_entry(key, write.entry), px=ttl_ms, nx=self._keeps_first)
        results = await pipeline.execute(raise_on_error=False)
        return [result for result in results if isinstance(result, Exception)]


def build_redis_store(policy: RedisStore, clock: Clock, *, keeps_first: bool = False) -> RedisEntryStore:
    """The store that a policy file asks for; nothing is sent before it is used. `keeps_first`: see there.

    Raises: ConfigurationError where the client library is missing or the URL is not one. The URL is not repeated.
    """
    # One connection for each task.
    client = connect(policy, max_connections=_NUM_READERS + 1)
    return RedisEntryStore(client, clock, prefix=policy.prefix, timeout_s=policy.timeout, keeps_first=keeps_first)


def connect(policy: RedisStore, *, max_connections: int) -> Redis:
    """A client for the Redis of a policy file: bytes in and out, a second for each call, no retries.

    Raises: ConfigurationError as `build_redis_store` does.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigurationError(
            "stores.redis needs the redis client: pip install 'slipstream-gateway[redis]'"
        ) from error
    try:
        client = Redis.from_url(
            policy.url.get_secret_value(),
            protocol=2,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=_SOCKET_TIMEOUT_S,
            max_connections=max_connections,
            # A failed call is a miss, never a second call.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        raise ConfigurationError("stores.redis.url is not a redis:// or rediss:// URL") from None
    # Replies come as Redis sent them: what the client would make of one differs by version, and may fail in the middle
    # of a pipeline.
    client.response_callbacks.clear()
    return client
