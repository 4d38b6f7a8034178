"""The one way to a Redis: reads within a deadline, writes in the order of coming, failures counted and never raised.

Whoever keeps something in Redis holds a link. How reads and writes wait for their turn is in `redis_queues.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError
from policies.cache.redis_queues import Breaker, ReadQueue, WriteQueue
from policies.cache.settings import RedisStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

Command: TypeAlias = tuple[str | bytes | int | float, ...]
Results: TypeAlias = Sequence[object]
"""One for each command: what Redis replied, or the error that it replied, as an object."""

_NUM_READERS = 4
_MAX_CONNECTIONS = 64
"""For readers, the writer, and each holder that calls by itself. No more are made than are used at once."""

_LEAST_SOCKET_TIMEOUT_S = 1.0
_FLUSH_TIMEOUT_S = 1.0


def prolonged(key: str, ttl_s: float) -> tuple[Command, Command]:
    """What lets a key live at least so long: one that lives longer, for somebody else's sake, is left so."""
    ttl_ms = max(1, int(1000 * ttl_s))
    return ("PEXPIRE", key, ttl_ms, "NX"), ("PEXPIRE", key, ttl_ms, "GT")


class Write(msgspec.Struct, frozen=True):
    """Commands that go to Redis together. `holds` is what they write, for whoever looks before they are carried out."""

    commands: tuple[Command, ...] | Callable[[], tuple[Command, ...]]
    """Or what makes them when it is their turn: a large answer that is dropped or replaced is never packed."""

    holds: object = None
    on_done: Callable[[Results], None] | None = None
    """Called with the results where Redis has replied."""


class LinkStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot: writes that wait and their bytes, failed round trips, writes that were dropped."""

    waiting: int
    waiting_bytes: int
    errors: int
    dropped: int


class RedisLink:
    """Carries commands for whoever holds it; whoever made it opens and closes it.

    `client` is used by it alone. `prefix` begins every key that its holders write; `name` is what the log calls the
    link. Two breakers, for reading and writing, keep away from a Redis that is out of order.
    """

    def __init__(self, client: Redis, clock: Clock, *, prefix: str, name: str, timeout_s: float) -> None:
        self.prefix = prefix
        from redis.exceptions import ConnectionError as Lost

        self._lost = Lost
        self._client = client
        reading = Breaker(clock, timeout_s, name)
        self._values: ReadQueue[str, object] = ReadQueue(self._fetch_values, reading, clock, timeout_s=timeout_s)
        self._reads: ReadQueue[tuple[Command, ...], Results] = ReadQueue(
            self._fetch, reading, clock, timeout_s=timeout_s
        )
        self._writes: WriteQueue[tuple[str | bytes, ...], Write] = WriteQueue(
            self._write, Breaker(clock, timeout_s, name), clock
        )

    async def open(self) -> None:
        """Start the tasks; a connection is made when it is first needed."""
        self._values.start(_NUM_READERS)
        self._reads.start(_NUM_READERS)
        self._writes.start()

    async def aclose(self) -> None:
        """Write what is waiting, within a second, then disconnect. Safe to call twice."""
        await self._writes.aclose(_FLUSH_TIMEOUT_S)
        await self._values.aclose()
        await self._reads.aclose()
        await self._client.aclose()

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything written so far has reached Redis or is given up, at most `timeout_s`."""
        await self._writes.flush(timeout_s)

    async def value(self, key: str) -> object:
        """What is kept under a key; None where that is nothing, no plain value, or not said within the limit.

        Those who ask at the same time share one command.
        """
        return await self._values.get(key)

    async def read(self, *commands: Command, timeout_s: float | None = None) -> Results | None:
        """The results of these commands; None where Redis does not reply within the limit (`timeout_s` or its own)."""
        return await self._reads.get(commands, timeout_s)

    def write(self, key: tuple[str | bytes, ...], write: Write, num_bytes: int) -> bool:
        """Have commands carried out soon, instead of those that wait under the same key. False: dropped."""
        return self._writes.put(key, write, num_bytes)

    def waiting(self, key: tuple[str | bytes, ...]) -> object:
        """What the commands that wait under that key hold."""
        write = self._writes.get_nowait(key)
        return None if write is None else write.holds

    async def call(self, *command: str | bytes | int) -> object:
        """The reply to one command, on a connection that others do not wait for. Raises whatever the client raises."""
        reply: object = await self._client.execute_command(*command)
        return reply

    def statistics(self) -> LinkStatistics:
        """A snapshot of the counters."""
        return LinkStatistics(
            waiting=len(self._writes),
            waiting_bytes=self._writes.num_bytes,
            errors=self._values.num_errors + self._reads.num_errors + self._writes.num_errors,
            dropped=self._writes.num_dropped,
        )

    async def _fetch_values(self, keys: list[str]) -> Sequence[object]:
        return await self._client.mget(keys)

    async def _fetch(self, wanted: list[tuple[Command, ...]]) -> list[Results | None]:
        results = iter(await self._execute([command for commands in wanted for command in commands]))
        return [[next(results) for _ in commands] for commands in wanted]

    async def _write(self, batch: list[tuple[tuple[str | bytes, ...], Write]]) -> list[Exception]:
        wanted = [write.commands() if callable(write.commands) else write.commands for _, write in batch]
        results = iter(await self._execute([command for commands in wanted for command in commands]))
        failures = []
        for (_, write), commands in zip(batch, wanted, strict=True):
            own = [next(results) for _ in commands]
            failures += [result for result in own if isinstance(result, Exception)][:1]
            if write.on_done is not None:
                write.on_done(own)
        return failures

    async def _execute(self, commands: list[Command]) -> list[object]:
        """One round trip. Replied errors are results; raises where Redis does not reply, or is not ready to."""
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        results: list[object] = await pipeline.execute(raise_on_error=False)
        for result in results:
            # The client takes LOADING, NOAUTH and the like for a lost connection: they concern every command alike.
            if isinstance(result, self._lost):
                raise result
        return results


def build_redis_link(policy: RedisStore, clock: Clock, *, part: str, name: str) -> RedisLink:
    """A link to the Redis of a policy file, for what is under `<prefix>:<part>`; nothing is sent before it is used.

    Raises: ConfigurationError where the client library is missing or the URL is not one. The URL is not repeated.
    """
    prefix = f"{policy.prefix}:{part}"
    return RedisLink(_connect(policy), clock, prefix=prefix, name=name, timeout_s=policy.timeout)


def _connect(policy: RedisStore) -> Redis:
    """A client for the Redis of a policy file: bytes in and out, no retries.

    Each call may take a second, for connecting is not a look-up's time, and longer where look-ups may.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigurationError(
            "stores.redis needs the redis client: pip install 'slipstream-gateway[redis]'"
        ) from error
    limit_s = max(_LEAST_SOCKET_TIMEOUT_S, policy.timeout)
    try:
        client = Redis.from_url(
            policy.url.get_secret_value(),
            protocol=2,
            socket_timeout=limit_s,
            socket_connect_timeout=limit_s,
            max_connections=_MAX_CONNECTIONS,
            # A failed call is a miss, never a second call.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        raise ConfigurationError("stores.redis.url is not a redis:// or rediss:// URL") from None
    # Replies come as Redis sent them: what the client would make of one differs by version, and may fail in the middle
    # of a pipeline.
    client.response_callbacks.clear()
    return client
