"""Answers in Redis, shared by every replica. A Redis that is down, slow or read-only costs misses and nothing else.

Two kinds of tasks own all traffic: readers fetch what is looked up, several keys in one round trip, and a writer
writes what was put. A look-up only waits for its reader, within its limit, so connecting never counts as its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError
from policies.cache.entry import Entry, pack_entry, unpack_entry
from policies.cache.store import StoreStatistics
from policies.schema import RedisStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

_NUM_READERS = 4
_MAX_KEYS_A_READ = 16
_MAX_WAITING_READS = 4096
_MAX_WRITES_AT_ONCE = 64
_MAX_WAITING_WRITES = 1024
_MAX_WAITING_WRITE_BYTES = 64 * 1024**2
_MAX_VALUE_BYTES = 16 * 1024**2
_SOCKET_TIMEOUT_S = 1.0
_FLUSH_TIMEOUT_S = 1.0

_LOGGER = logging.getLogger(__name__)


class _Write(msgspec.Struct, frozen=True):
    """An answer on its way to Redis; without an entry the key is to be deleted."""

    entry: Entry | None
    num_bytes: int
    ttl_s: float


class Breaker:
    """Says when a service that keeps failing is worth another call: one after 1 s, then 2 s, 4 s ... 30 s."""

    _NUM_FAILURES = 5
    _FIRST_PAUSE_S = 1.0
    _LONGEST_PAUSE_S = 30.0

    def __init__(self, clock: Clock, spacing_s: float) -> None:
        """Failures less than `spacing_s` apart count as one: a single stall hits many calls at once."""
        self._clock = clock
        self._spacing_s = spacing_s
        self._num_failures = 0
        self._failed_at = float("-inf")
        self._pause_s = self._FIRST_PAUSE_S
        self._paused_until = float("-inf")

    @property
    def is_out(self) -> bool:
        """Whether the service is taken to be out of order."""
        return self._num_failures >= self._NUM_FAILURES

    def is_worth_trying(self) -> bool:
        """Whether to call now. While the service is out of order that is one yes after each pause."""
        if not self.is_out:
            return True
        now = self._clock.now()
        if now < self._paused_until:
            return False
        self._pause_s = min(2 * self._pause_s, self._LONGEST_PAUSE_S)
        self._paused_until = now + self._pause_s
        return True

    def succeeded(self) -> None:
        """A call succeeded."""
        self._num_failures = 0

    def failed(self) -> None:
        """A call failed."""
        now = self._clock.now()
        if self.is_out or now - self._failed_at < self._spacing_s:
            return
        self._failed_at = now
        self._num_failures += 1
        self._pause_s = self._FIRST_PAUSE_S
        self._paused_until = now + self._pause_s


class RedisEntryStore:
    """Keeps entries under `<prefix>:answer:<key in hex>`, each with its time to live.

    `client` is used by this store alone and closed with it. A look-up waits at most `timeout_s`. What is waiting to
    be written is bounded; more than that is dropped and counted.
    """

    def __init__(self, client: Redis, clock: Clock, *, prefix: str, timeout_s: float) -> None:
        self._client = client
        self._prefix = f"{prefix}:answer:"
        self._timeout_s = timeout_s
        self._read_breaker = Breaker(clock, timeout_s)
        self._write_breaker = Breaker(clock, timeout_s)
        self._reads: asyncio.Queue[tuple[bytes, asyncio.Future[Entry | None]]] = asyncio.Queue(_MAX_WAITING_READS)
        self._writes: OrderedDict[bytes, _Write] = OrderedDict()
        self._num_write_bytes = 0
        self._has_writes = asyncio.Event()
        self._has_no_writes = asyncio.Event()
        self._has_no_writes.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False
        self._hits = 0
        self._misses = 0
        self._errors = 0
        self._dropped = 0

    async def open(self) -> None:
        """Start the tasks; a connection is made when it is first needed."""
        loop = asyncio.get_running_loop()
        self._is_closing = False
        self._tasks = [loop.create_task(self._read_until_closed()) for _ in range(_NUM_READERS)]
        self._tasks.append(loop.create_task(self._write_until_closed()))

    async def aclose(self) -> None:
        """Write what is waiting, within a second, then disconnect. Safe to call twice."""
        if self._tasks:
            await self.flush(_FLUSH_TIMEOUT_S)
        # Cancelling is not enough: the client library may make another error of it on its way up.
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._client.aclose()

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything put so far is written or given up, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_no_writes.wait()
        except TimeoutError:
            _LOGGER.debug("%d answers were not written to redis in time", len(self._writes))

    def get_nowait(self, key: bytes) -> Entry | None:
        """The answer if it waits to be written."""
        write = self._writes.get(key)
        if write is None or write.entry is None:
            return None
        self._hits += 1
        return write.entry

    async def get(self, key: bytes) -> Entry | None:
        """The answer; None where there is none, or Redis does not say so within `timeout_s`."""
        entry = self.get_nowait(key)
        if entry is not None:
            return entry
        if self._tasks and not self._reads.full() and self._read_breaker.is_worth_trying():
            entry = await self._look_up(key)
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
        return entry

    def put(self, key: bytes, entry: Entry, ttl_s: float) -> None:
        """Have an answer written soon; dropped if it is too large, too much is waiting, or Redis is out of order."""
        num_bytes = len(entry.body)
        is_full = (
            len(self._writes) >= _MAX_WAITING_WRITES or self._num_write_bytes + num_bytes > _MAX_WAITING_WRITE_BYTES
        )
        if not self._tasks or num_bytes > _MAX_VALUE_BYTES or is_full or not self._write_breaker.is_worth_trying():
            self._dropped += 1
            return
        self._push(key, _Write(entry, num_bytes, ttl_s))

    def statistics(self) -> StoreStatistics:
        """A snapshot of the counters."""
        return StoreStatistics(
            hits=self._hits,
            misses=self._misses,
            entries=len(self._writes),
            bytes=self._num_write_bytes,
            errors=self._errors,
            dropped=self._dropped,
        )

    async def _look_up(self, key: bytes) -> Entry | None:
        found: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        self._reads.put_nowait((key, found))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await found
        except TimeoutError:
            self._fail(self._read_breaker, f"no answer within {self._timeout_s:g} s")
            return None

    async def _read_until_closed(self) -> None:
        while not self._is_closing:
            wanted = [await self._reads.get()]
            while len(wanted) < _MAX_KEYS_A_READ and not self._reads.empty():
                wanted.append(self._reads.get_nowait())
            # Who has stopped waiting is not worth a round trip.
            wanted = [pair for pair in wanted if not pair[1].done()]
            values = await self._fetch([key for key, _ in wanted]) if wanted else []
            for (key, found), value in zip(wanted, values, strict=True):
                entry = self._unpack(key, value)
                if not found.done():
                    found.set_result(entry)

    async def _fetch(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            values = await self._client.mget([self._prefix + key.hex() for key in keys])
        except Exception as error:
            # The border of a background task: whatever the client library comes to, later look-ups need a reader.
            self._fail(self._read_breaker, type(error).__name__)
            return [None] * len(keys)
        self._succeed(self._read_breaker)
        return [value if isinstance(value, bytes) else None for value in values]

    def _unpack(self, key: bytes, value: bytes | None) -> Entry | None:
        if value is None:
            return None
        entry = unpack_entry(key, value)
        if entry is None:
            self._errors += 1
            if key not in self._writes and len(self._writes) < _MAX_WAITING_WRITES:
                self._push(key, _Write(None, 0, 0.0))
        return entry

    def _push(self, key: bytes, write: _Write) -> None:
        self._pop(key)
        self._writes[key] = write
        self._num_write_bytes += write.num_bytes
        self._has_writes.set()
        self._has_no_writes.clear()

    def _pop(self, key: bytes) -> None:
        write = self._writes.pop(key, None)
        if write is not None:
            self._num_write_bytes -= write.num_bytes

    async def _write_until_closed(self) -> None:
        while not self._is_closing:
            await self._has_writes.wait()
            batch = [pair for pair, _ in zip(self._writes.items(), range(_MAX_WRITES_AT_ONCE), strict=False)]
            await self._write(batch)
            # Until here `get` finds them among the waiting; one that was put again meanwhile is still to be written.
            for key, write in batch:
                if self._writes.get(key) is write:
                    self._pop(key)
            if not self._writes:
                self._has_writes.clear()
                self._has_no_writes.set()

    async def _write(self, batch: list[tuple[bytes, _Write]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key, write in batch:
            name = self._prefix + key.hex()
            if write.entry is None:
                pipeline.delete(name)
            else:
                pipeline.set(name, pack_entry(key, write.entry), px=max(1, int(1000 * write.ttl_s)))
        try:
            results = await pipeline.execute(raise_on_error=False)
        except Exception as error:
            # The border of a background task, as in `_fetch`.
            self._dropped += len(batch)
            self._fail(self._write_breaker, type(error).__name__)
            return
        failures = [result for result in results if isinstance(result, Exception)]
        if failures:
            self._dropped += len(failures)
            self._fail(self._write_breaker, type(failures[0]).__name__)
        else:
            self._succeed(self._write_breaker)

    def _succeed(self, breaker: Breaker) -> None:
        if breaker.is_out:
            _LOGGER.info("the redis store works again")
        breaker.succeeded()

    def _fail(self, breaker: Breaker, reason: str) -> None:
        self._errors += 1
        was_out = breaker.is_out
        breaker.failed()
        if breaker.is_out and not was_out:
            # Only the kind of error: its text could repeat the address with its password.
            _LOGGER.warning("the redis store is out of order (%s); calls go on without it", reason)


def build_redis_store(policy: RedisStore, clock: Clock) -> RedisEntryStore:
    """The store that a policy file asks for; nothing is sent before it is used.

    Raises: ConfigurationError where the client library is missing or the URL is not one. The URL is not repeated.
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
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=_SOCKET_TIMEOUT_S,
            # One connection for each task; a failed call is a miss, never a second call.
            max_connections=_NUM_READERS + 1,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        raise ConfigurationError("stores.redis.url is not a redis:// or rediss:// URL") from None
    return RedisEntryStore(client, clock, prefix=policy.prefix, timeout_s=policy.timeout)
