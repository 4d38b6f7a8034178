"""Keeps a connection to Redis and this process's lease there: as long as it is renewed, what its calls hold is theirs.

A process that dies is missed when its lease is over; then what its calls held counts as spent. One that only could not
reach Redis for so long tells it again what its calls hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, cast

import msgspec

from backends.clock import Clock
from policies.limits.redis.address import RedisAddress, RedisRefused, raise_refusal
from policies.limits.redis.refilling import Refilling
from policies.limits.redis.replies import ReplyError
from policies.limits.redis.run import NAMELESS, RedisRun, run_of
from policies.limits.redis.scripts import Scripts
from policies.limits.redis.settling import Settling
from policies.limits.redis.wire import RedisWire
from policies.loop import Loop

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_PROBE_S = 0.25
"""So often a slow Redis is asked whether it still is."""
_CONNECT_LIMIT_S = 2.0
_CLOSE_LIMIT_S = 1.0
_STEADY_S = 1.0
"""After a connection that has lasted so long, the next one is made at once."""
_STALLED_S = 3.0
"""A connection that is silent for so long is taken to be dead."""

_SLOW = "it is slow"

_LOGGER = logging.getLogger(__name__)


_Renewed: TypeAlias = tuple[int, int, int, int, int, bytes | None]
"""Whether the lease was known, holds, replicas, how many were swept, seconds, whose budgets were refilled."""


class LeaseTimes(msgspec.Struct, frozen=True):
    """How long a lease lasts, and how often it is renewed, in seconds."""

    lease_s: float = 15.0
    renew_s: float = 5.0


class Keeper:
    """`wire` is the connection, None as long as there is none that is worth asking.

    `on_away` is called with the last connection when Redis is taken to be away, `on_ready` when it is back.
    """

    def __init__(
        self,
        address: RedisAddress,
        scripts: Scripts,
        settling: Settling,
        refilling: Refilling,
        clock: Clock,
        *,
        replica: bytes,
        deadline_s: float,
        times: LeaseTimes,
        on_away: Callable[[RedisWire | None], None],
        on_ready: Callable[[], None],
    ) -> None:
        self.wire: RedisWire | None = None
        self.connection = b"0"
        """The number of the newest connection: what an older one still sends is not carried out."""
        self.is_away = False
        """Whether calls do without Redis. Where there is no wire and this is False, one is being made: they wait."""
        self.num_replicas = 0
        """That are counting together, as last seen; 0: this process has never seen any."""
        self.num_swept = 0
        self.num_outages = 0
        self._address = address
        self._moved_to: RedisAddress | None = None
        self._run = NAMELESS
        self._scripts = scripts
        self._settling = settling
        self._refilling = refilling
        self._clock = clock
        self._replica = replica
        self._deadline_s = deadline_s
        self._times = times
        self._on_away = on_away
        self._on_ready = on_ready
        self._current: RedisWire | None = None
        self._num_connections = 0
        self._is_started = False
        self._is_due = asyncio.Event()
        self._is_decided = asyncio.Event()
        self._loop = Loop("counting limits in redis", clock, of_service=True)

    async def aclose(self) -> None:
        """Settle what is waiting and give the lease back, within a second; then disconnect. Safe to call twice."""
        if self.wire is not None:
            self._settling.send(self.wire, self.refused)
            try:
                async with asyncio.timeout(_CLOSE_LIMIT_S):
                    await self.wire.ask(self._renewal(lease_s=0.0))
            except TimeoutError:
                _LOGGER.debug("redis did not take the last settlements in time")
        await self._loop.aclose()
        await self._refilling.aclose()

    async def find_wire(self) -> RedisWire | None:
        """The connection, once there is one; None where Redis is away. Waits no longer than for a reply.

        The first one who asks begins everything: a policy without limits and budgets has no connection.
        """
        if not self._is_started:
            self._is_started = True
            self._loop.start(self._keep)
        if not self._is_decided.is_set():
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._is_decided.wait()
            except TimeoutError:
                self._be_away("it takes too long to connect")
        return self.wire

    def refused(self, reply: ReplyError) -> None:
        """Redis does not do what it was asked: begin anew, elsewhere if it says so."""
        self._moved_to = self._address.moved(reply)
        if self._moved_to is None and not str(reply).startswith("NOSCRIPT"):
            self._be_away(_kind_of(reply))
        if self._current is not None:
            self._current.abort()

    def look_again(self) -> None:
        """Redis does not know this process: tell it."""
        self._be_undecided()
        self._is_due.set()

    async def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began = self._clock.now()
            try:
                await self._keep_connection()
                reason = "it closes connections"
            except (OSError, TimeoutError, RedisRefused) as error:
                # The kind only: the text could repeat the address.
                reason = _kind_of(error) if isinstance(error, RedisRefused) else type(error).__name__
            if self._clock.now() - began > _STEADY_S:
                # It was all right: another one is made at once, and calls wait for it.
                pause_s = _FIRST_PAUSE_S
                if not self.is_away:
                    continue
            elif self._moved_to is not None and pause_s == _FIRST_PAUSE_S:
                pause_s *= 2
                continue
            self._be_away(reason)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _keep_connection(self) -> None:
        """Connect, and renew the lease until the connection ends. Raises: OSError, TimeoutError, RedisRefused."""
        address, self._moved_to = self._moved_to or self._address, None
        self._num_connections += 1
        self.connection = b"%d" % self._num_connections
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            self._current = wire = await address.connect(self._make_wire)
            try:
                for command in self._scripts.loading():
                    raise_refusal(await wire.ask(command))
                self._meet(await run_of(wire))
            except BaseException:
                wire.abort()
                raise
        try:
            while not wire.is_ended:
                self._is_due.clear()
                wait_s = await self._renew(wire)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._is_due.wait()
        except RedisRefused as error:
            self._moved_to = self._address.moved(ReplyError(str(error)))
            raise
        finally:
            wire.abort()

    def _meet(self, run: RedisRun) -> None:
        if run.evicts and run != self._run:
            _LOGGER.warning(
                "redis evicts keys when its memory is full, so what was counted and spent may be forgotten: set its "
                "maxmemory-policy to noeviction"
            )
        self._run = run

    def _make_wire(self) -> RedisWire:
        return RedisWire(self._deadline_s, on_slow=self._be_slow, on_end=self._end)

    async def _renew(self, wire: RedisWire) -> float:
        """Begin the lease anew; in how many seconds again. Raises: OSError, TimeoutError, RedisRefused."""
        sent_at = self._clock.now()
        async with asyncio.timeout(_STALLED_S):
            reply = await wire.ask(self._renewal(self._times.lease_s))
        raise_refusal(reply)
        if self._clock.now() - sent_at > self._deadline_s:
            self._be_away(_SLOW)
            return _PROBE_S
        was_known, num_holds, self.num_replicas, num_swept, time_s, refilled = cast(_Renewed, reply)
        self.num_swept += num_swept
        settling = self._settling
        settling.ahead_s = b"%d" % (time_s - self._clock.wall())
        await self._refilling.refill(wire, self._run, refilled, settling.ahead_s)
        if not was_known or num_holds < len(settling.held) or settling.has_unknown:
            settling.adopt(wire, self.connection, self.refused)
        settling.send(wire, self.refused)
        self.wire = wire
        if self.is_away:
            self.is_away = False
            _LOGGER.info("redis counts limits and budgets again")
            self._on_ready()
        self._is_decided.set()
        return self._times.renew_s

    def _renewal(self, lease_s: float) -> bytes:
        return self._scripts.command("renew", self._replica, self.connection, b"%d" % round(1000 * lease_s))

    def _be_slow(self) -> None:
        if not self.is_away:
            self._be_away(_SLOW)
            self._is_due.set()

    def _end(self) -> None:
        self._be_undecided()
        self._is_due.set()

    def _be_undecided(self) -> None:
        self.wire = None
        if not self.is_away:
            self._is_decided.clear()

    def _be_away(self, reason: str) -> None:
        self.wire = None
        if not self.is_away:
            self.is_away = True
            self.num_outages += 1
            _LOGGER.warning("redis does not count limits and budgets (%s): `when_away` says what is done", reason)
            self._on_away(self._current)
        self._is_decided.set()


def _kind_of(error: Exception) -> str:
    """The first word of what Redis says, which names the kind of error."""
    return str(error).partition(" ")[0]
