"""How this process talks to Redis: look-ups and writes wait in bounded queues, and tasks carry them there in batches.

A look-up only waits for its reader, within its limit, so connecting never counts as its time. Whatever happens to
Redis ends here: as None, as something dropped, and in the counters.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from backends.clock import Clock
from policies.loop import Loop

_MAX_KEYS_A_READ = 16
_MAX_WAITING_READS = 4096
_MAX_WRITES_AT_ONCE = 64
_MAX_WAITING_WRITES = 1024
_MAX_WAITING_WRITE_BYTES = 64 * 1024**2
_MAX_WRITE_BYTES = 16 * 1024**2

_LOGGER = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Breaker:
    """Says when a service that keeps failing is worth another call: one after 1 s, then 2 s, 4 s ... 30 s.

    `name` is what the log calls the service.
    """

    _NUM_FAILURES = 5
    _FIRST_PAUSE_S = 1.0
    _LONGEST_PAUSE_S = 30.0

    def __init__(self, clock: Clock, spacing_s: float, name: str = "redis") -> None:
        """Failures less than `spacing_s` apart count as one: a single stall hits many calls at once."""
        self._clock = clock
        self._spacing_s = spacing_s
        self._name = name
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
        if self.is_out:
            _LOGGER.info("%s works again", self._name)
        self._num_failures = 0

    def failed(self, reason: str = "") -> None:
        """A call failed. `reason` is the kind of error only: its text could repeat the address with its password."""
        now = self._clock.now()
        if self.is_out or now - self._failed_at < self._spacing_s:
            return
        self._failed_at = now
        self._num_failures += 1
        self._pause_s = self._FIRST_PAUSE_S
        self._paused_until = now + self._pause_s
        if self.is_out:
            _LOGGER.warning("%s is out of order (%s); calls go on without it", self._name, reason)


class ReadQueue(Generic[Key, Value]):
    """Look-ups on their way to Redis; `fetch` answers several in one round trip, in order, or raises."""

    def __init__(
        self,
        fetch: Callable[[list[Key]], Awaitable[Sequence[Value | None]]],
        breaker: Breaker,
        clock: Clock,
        *,
        timeout_s: float,
    ) -> None:
        self._fetch = fetch
        self._breaker = breaker
        self._clock = clock
        self._timeout_s = timeout_s
        self._waiting: asyncio.Queue[tuple[Key, asyncio.Future[Value | None]]] = asyncio.Queue(_MAX_WAITING_READS)
        self._readers: list[Loop] = []
        self.num_errors = 0

    def start(self, num_readers: int) -> None:
        """Begin to serve, with so many round trips under way at once."""
        self._readers = [Loop("reading from redis", self._clock, of_service=True) for _ in range(num_readers)]
        for reader in self._readers:
            reader.start(self._read_until_cancelled)

    async def aclose(self) -> None:
        """Stop. Safe to call twice; later look-ups give None."""
        readers, self._readers = self._readers, []
        for reader in readers:
            await reader.aclose()

    async def get(self, key: Key, timeout_s: float | None = None) -> Value | None:
        """What Redis holds; None where that is nothing, or it does not say so within the limit."""
        if not self._readers or self._waiting.full() or not self._breaker.is_worth_trying():
            return None
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Value | None] = loop.create_future()
        self._waiting.put_nowait((key, found))
        # A timer of our own: `asyncio.timeout` costs a look-up several microseconds.
        timer = loop.call_later(limit_s, self._give_up, found, limit_s)
        try:
            return await found
        finally:
            timer.cancel()

    async def _read_until_cancelled(self) -> None:
        while True:
            wanted = [await self._waiting.get()]
            while len(wanted) < _MAX_KEYS_A_READ and not self._waiting.empty():
                wanted.append(self._waiting.get_nowait())
            # Who has stopped waiting is not worth a round trip.
            wanted = [pair for pair in wanted if not pair[1].done()]
            if wanted:
                await self._fetch_for(wanted)

    async def _fetch_for(self, wanted: list[tuple[Key, asyncio.Future[Value | None]]]) -> None:
        values: Sequence[Value | None] = [None] * len(wanted)
        try:
            values = await self._fetch([key for key, _ in wanted])
        except Exception as error:
            # The border of a background task: whatever the client library comes to, later look-ups need a reader.
            self._fail(type(error).__name__)
        else:
            # Nobody waits any more: who asked had a shorter limit than ours, and a slow service is to be left alone.
            if all(found.done() for _, found in wanted):
                self._breaker.failed("answers come too late")
            else:
                self._breaker.succeeded()
        for (_, found), value in zip(wanted, values, strict=True):
            if not found.done():
                found.set_result(value)

    def _give_up(self, found: asyncio.Future[Value | None], limit_s: float) -> None:
        if not found.done():
            found.set_result(None)
            self._fail(f"no answer within {limit_s:g} s")

    def _fail(self, reason: str) -> None:
        self.num_errors += 1
        self._breaker.failed(reason)


class WriteQueue(Generic[Key, Value]):
    """Writes on their way to Redis, in order; one under the key of one that waits takes its place, at the end.

    `write` carries a batch and returns an error for each that was not taken; it raises where none was. What waits is
    bounded in number, bytes and size of one; more than that is dropped and counted.
    """

    def __init__(
        self, write: Callable[[list[tuple[Key, Value]]], Awaitable[Sequence[Exception]]], breaker: Breaker, clock: Clock
    ) -> None:
        self._write = write
        self._breaker = breaker
        self._waiting: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._has_some = asyncio.Event()
        self._has_none = asyncio.Event()
        self._has_none.set()
        self._writer = Loop("writing to redis", clock, of_service=True)
        self._is_open = False
        self.num_bytes = 0
        self.num_errors = 0
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Begin to write."""
        self._is_open = True
        self._writer.start(self._write_until_cancelled)

    async def aclose(self, flush_s: float) -> None:
        """Write what is waiting, within `flush_s`, and stop. Safe to call twice; later writes are dropped."""
        if self._is_open:
            await self.flush(flush_s)
            self._is_open = False
            await self._writer.aclose()

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything put so far is written or given up, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_none.wait()
        except TimeoutError:
            _LOGGER.debug("%d writes did not reach redis in time", len(self._waiting))

    def get_nowait(self, key: Key) -> Value | None:
        """What waits to be written under that key."""
        found = self._waiting.get(key)
        return None if found is None else found[0]

    def put(self, key: Key, value: Value, num_bytes: int) -> bool:
        """Have it written soon. False: dropped, for it is too large, too much is waiting, or Redis is out of order."""
        is_full = len(self._waiting) >= _MAX_WAITING_WRITES or self.num_bytes + num_bytes > _MAX_WAITING_WRITE_BYTES
        if not self._is_open or num_bytes > _MAX_WRITE_BYTES or is_full or not self._breaker.is_worth_trying():
            self.num_dropped += 1
            return False
        self._pop(key)
        self._waiting[key] = (value, num_bytes)
        self.num_bytes += num_bytes
        self._has_some.set()
        self._has_none.clear()
        return True

    def _pop(self, key: Key) -> None:
        found = self._waiting.pop(key, None)
        if found is not None:
            self.num_bytes -= found[1]

    async def _write_until_cancelled(self) -> None:
        while True:
            await self._has_some.wait()
            batch = [pair for pair, _ in zip(self._waiting.items(), range(_MAX_WRITES_AT_ONCE), strict=False)]
            await self._write_or_drop([(key, value) for key, (value, _) in batch])
            # Until here `get_nowait` finds them; one that was put again meanwhile is still to be written.
            for key, waiting in batch:
                if self._waiting.get(key) is waiting:
                    self._pop(key)
            if not self._waiting:
                self._has_some.clear()
                self._has_none.set()

    async def _write_or_drop(self, batch: list[tuple[Key, Value]]) -> None:
        try:
            failures = await self._write(batch)
        except Exception as error:
            # The border of a background task, as for look-ups.
            failures = [error] * len(batch)
        self.num_dropped += len(failures)
        self.num_errors += bool(failures)
        if len(failures) < len(batch):
            self._breaker.succeeded()
        else:
            self._breaker.failed(type(failures[0]).__name__)
