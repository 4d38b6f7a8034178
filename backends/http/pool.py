"""Connections to one origin: which are idle, who waits for one, and the sweeper that enforces every time limit.

Acquiring and releasing cost the same whatever the number of connections and waiters.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from backends.clock import Clock
from backends.errors import (
    ConnectFailed,
    ConnectTimeout,
    PoolTimeout,
    TotalTimeout,
    UpstreamCut,
    UpstreamError,
    UpstreamTimeout,
)
from backends.http.connection import READ_BYTES, Connection
from backends.http.http1_exchange import HttpExchange
from backends.http.origin import Origin
from backends.http.wire import TimeLimits
from backends.protocol import Statistics

_logger = logging.getLogger(__name__)

TICK_S = 0.05
"""How often limits are compared with the clock: a limit takes effect at most this much late. Where there is nothing
but idle connections, the next look is when the first of them expires."""


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections one origin may have, how many of them idle, and for how long."""

    max_connections: int = 1000
    max_idle: int = 1000
    idle_expiry_s: float = 60.0


class Sweeper:
    """One timer for all pools of a transport; runs only while there is something that can expire."""

    def __init__(self, clock: Clock) -> None:
        self.pools: set[OriginPool] = set()
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False

    def wake(self) -> None:
        """Something has begun to wait: tick fast from now on."""
        if not self._is_busy:
            self._schedule(TICK_S, is_busy=True)

    def remove(self, pool: OriginPool) -> None:
        """Look after that pool no longer. Safe to call twice."""
        self.pools.discard(pool)
        if not self.pools:
            self._stop()

    def _schedule(self, delay_s: float, *, is_busy: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_busy = is_busy
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        try:
            self._sweep(iter(tuple(self.pools)), self._clock.now())
        finally:
            self._tick_again()

    def _sweep(self, left: Iterator[OriginPool], now: float) -> None:
        # Every limit of every pool hangs on this: one that raises must end neither the others' sweep nor the next tick.
        try:
            for pool in left:
                pool.sweep(now)
        except BaseException:
            self._sweep(left, now)
            raise

    def _tick_again(self) -> None:
        if any(pool.is_busy for pool in self.pools):
            self._schedule(TICK_S, is_busy=True)
            return
        idle_until = min((pool.idle_until for pool in self.pools), default=math.inf)
        if idle_until < math.inf:
            self._schedule(max(TICK_S, idle_until - self._clock.now()), is_busy=False)
        else:
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_busy = False


class OriginPool:
    """The connections to one origin: the most recently used idle one goes first, whoever must wait is served in order.

    A place is held by every open connection and by every attempt to open one; there are `max_connections` of them.
    """

    def __init__(
        self,
        origin: Origin,
        limits: PoolLimits,
        clock: Clock,
        sweeper: Sweeper,
        tls: Callable[[], ssl.SSLContext],
        *,
        name: str = "",
    ) -> None:
        """`name`: what clients may know of the origin; its address is for the log."""
        self.origin = origin
        self._shown = f'the upstream "{name}"' if name else "the upstream"
        self._last_failure = ""
        self.limits = limits
        self.num_sent = 0
        self.num_failed = 0
        self._clock = clock
        self._sweeper = sweeper
        self._tls = tls
        self._is_closed = False
        self._num_opened = 0
        self._num_reused = 0
        self._num_connecting = 0
        self._open: set[Connection] = set()
        self._active: set[HttpExchange] = set()
        # Oldest first, so expiry looks at one end and reuse at the other.
        self._idle: OrderedDict[Connection, None] = OrderedDict()
        # A waiter is given a connection, or None: a place to open one in.
        self._waiters: OrderedDict[asyncio.Future[Connection | None], float] = OrderedDict()
        self._all_lost: asyncio.Future[None] | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        sweeper.pools.add(self)

    @property
    def is_busy(self) -> bool:
        """Somebody is waiting for something with a limit."""
        return bool(self._active or self._waiters)

    @property
    def num_idle(self) -> int:
        """Open connections without an exchange."""
        return len(self._idle)

    @property
    def idle_until(self) -> float:
        """When the first idle connection expires (monotonic seconds); infinity where there is none."""
        return next(iter(self._idle)).idle_since + self.limits.idle_expiry_s if self.num_idle else math.inf

    @property
    def num_open(self) -> int:
        """Open connections and attempts to open one."""
        return len(self._open) + self._num_connecting

    def prepare(self) -> None:
        """Do now what the first connection would otherwise wait for: load the certificate authorities."""
        if self.origin.scheme == "https":
            self._tls()

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
        return Statistics(
            in_flight=len(self._active) + len(self._waiters) + self._num_connecting,
            sent=self.num_sent,
            failed=self.num_failed,
            connections_opened=self._num_opened,
            connections_reused=self._num_reused,
        )

    def check_time(self, limits: TimeLimits) -> float:
        """Begin nothing for a call whose time is up. The time (monotonic seconds).

        Raises: TotalTimeout.
        """
        now = self._clock.now()
        if limits.deadline <= now:
            self.num_failed += 1
            raise TotalTimeout("the call's time was up before it could be sent")
        return now

    def acquire_nowait(self, now: float) -> Connection | None:
        """An idle connection that is not too old at `now` (monotonic seconds), or None."""
        oldest = now - self.limits.idle_expiry_s
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.is_closed:
                if connection.idle_since > oldest:
                    return connection
                # The other end may be closing it this moment.
                connection.abort()
        return None

    async def acquire(self, limits: TimeLimits, *, must_be_new: bool = False) -> Connection:
        """A connection, opened if need be; `limits.connect_s` bounds waiting and opening together.

        `must_be_new` never gives one that has already carried an exchange.
        Raises: PoolTimeout, ConnectTimeout, ConnectFailed, TotalTimeout.
        """
        self.check_time(limits)
        give_up_at = min(self._clock.now() + limits.connect_s, limits.deadline)
        try:
            connection = await self._reserve(give_up_at)
            if connection is not None and must_be_new:
                # Its place is taken over now; later, when its end is reported, it is no longer known.
                self._open.remove(connection)
                connection.abort()
                self._num_connecting += 1
                connection = None
            if connection is None:
                return await self._connect(give_up_at - self._clock.now())
        except UpstreamError as error:
            self.num_failed += 1
            if isinstance(error, UpstreamTimeout) and give_up_at == limits.deadline < math.inf:
                raise TotalTimeout("the call's time was up before it could be sent") from error
            raise
        return connection

    def begin(self, connection: Connection, limits: TimeLimits, *, is_head: bool) -> HttpExchange:
        """Start an exchange on an acquired connection; its time starts now."""
        exchange = HttpExchange(connection, self, self._clock, limits, is_head=is_head)
        self._active.add(exchange)
        self.num_sent += 1
        if connection.is_used:
            self._num_reused += 1
        else:
            connection.is_used = True
        self._sweeper.wake()
        return exchange

    def finish(self, exchange: HttpExchange, connection: Connection, *, is_reusable: bool, has_failed: bool) -> None:
        """See `exchange.Pool`."""
        self._active.discard(exchange)
        if has_failed and exchange.status:
            self.num_failed += 1
        if is_reusable:
            self._release(connection)

    def forget(self, connection: Connection) -> None:
        """See `connection.Owner`."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)
        self._free_place()

    def sweep(self, now: float) -> None:
        """Enforce every limit that has passed by `now` (monotonic seconds)."""
        for exchange in self._active:
            if exchange.deadline <= now:
                exchange.expire(now)
        late = [waiter for waiter, give_up_at in self._waiters.items() if give_up_at <= now]
        for waiter in late:
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_exception(
                    PoolTimeout(
                        f"none of the {self.limits.max_connections} connections to {self._shown} came free in"
                        " time; nothing was sent"
                    )
                )
        while self.idle_until <= now:
            self._idle.popitem(last=False)[0].abort()

    async def aclose(self) -> None:
        """Break off every exchange, turn away whoever waits, and close every connection. Safe to call twice."""
        self._is_closed = True
        self._sweeper.remove(self)
        for exchange in self._active:
            exchange.fail(UpstreamCut(f"the connections to {self._shown} were closed by the gateway"))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._closed_error())
        self._waiters.clear()
        for connection in self._open:
            connection.abort()
        while self._open:
            if self._all_lost is None or self._all_lost.done():
                self._all_lost = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._all_lost)

    async def _reserve(self, give_up_at: float) -> Connection | None:
        """An idle connection, or None with a place to open one in."""
        while not self._is_closed:
            connection = self.acquire_nowait(self._clock.now())
            if connection is not None:
                return connection
            if self.num_open < self.limits.max_connections:
                self._num_connecting += 1
                return None
            granted = await self._wait(give_up_at)
            if granted is None or not granted.is_closed:
                return granted
        raise self._closed_error()

    async def _wait(self, give_up_at: float) -> Connection | None:
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = give_up_at
        self._sweeper.wake()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                granted = waiter.result()
                if granted is not None:
                    self._release(granted)
                else:
                    self._num_connecting -= 1
                    self._free_place()
            raise
        finally:
            self._waiters.pop(waiter, None)

    async def _connect(self, timeout_s: float) -> Connection:
        """Open a connection in the place that `_num_connecting` already counts."""
        origin = self.origin
        connection = None
        try:
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    partial(Connection, self._buffer),
                    origin.host,
                    origin.port,
                    ssl=self._tls() if origin.scheme == "https" else None,
                    server_hostname=origin.host if origin.scheme == "https" else None,
                )
            if connection.is_closed:
                raise ConnectFailed(f"{self._shown} closed the connection as soon as it was open; nothing was sent")
            if self._is_closed:
                raise self._closed_error()
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.owner = self
            self._open.add(connection)
            self._num_opened += 1
            self._last_failure = ""
        except TimeoutError as error:
            self._log_failure("no connection within the time allowed")
            raise ConnectTimeout(f"no connection to {self._shown} within the time allowed; nothing was sent") from error
        except (OSError, UnicodeError) as error:
            self._log_failure(str(error))
            raise ConnectFailed(f"cannot connect to {self._shown}; nothing was sent") from error
        finally:
            self._num_connecting -= 1
            if connection is None or connection.owner is None:
                if connection is not None:
                    connection.abort()
                self._free_place()
        return connection

    def _log_failure(self, why: str) -> None:
        """Say where nobody could be reached: once, until it works again or fails in another way."""
        if why != self._last_failure:
            self._last_failure = why
            _logger.warning("cannot connect to %s at %s: %s", self._shown, self.origin.address, why)

    def _release(self, connection: Connection) -> None:
        if connection.is_closed:
            return
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_result(connection)
        elif len(self._idle) >= self.limits.max_idle or self._is_closed:
            connection.abort()
        else:
            connection.idle_since = self._clock.now()
            self._idle[connection] = None

    def _free_place(self) -> None:
        if self.num_open < self.limits.max_connections and (waiter := self._next_waiter()) is not None:
            self._num_connecting += 1
            waiter.set_result(None)

    def _next_waiter(self) -> asyncio.Future[Connection | None] | None:
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            if not waiter.done():
                return waiter
        return None

    def _closed_error(self) -> ConnectFailed:
        return ConnectFailed(f"the connections to {self._shown} are closed; nothing was sent")
