"""Counters in Redis that several processes share: one round trip for all that a call asks, none to settle it.

Redis may be away: down, read-only, full, loading, slow. Then `when_away` says what becomes of calls; `away.py` counts
what is this process's share.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import cast

from backends.clock import Clock
from policies.cache.settings import RedisStore
from policies.limits.counters import Away, Full, Hold, SharedStatistics, Slots, Want
from policies.limits.redis.address import RedisAddress
from policies.limits.redis.away import OwnShare
from policies.limits.redis.keeper import Keeper, LeaseTimes
from policies.limits.redis.packing import full_of, key_of, left_of, most_of, pack_wants, spent_of, unpack
from policies.limits.redis.refilling import ReadSpentBefore, Refilling
from policies.limits.redis.replies import Reply, ReplyError
from policies.limits.redis.scripts import Scripts, pack_command
from policies.limits.redis.settings import LimitsStore
from policies.limits.redis.settling import Settling
from policies.limits.redis.wire import LOST, RedisWire

_SETTLE_WITHIN_S = 0.005
_MOST_TRIES = 3
_MOST_HELD = 100_000
"""Calls under way in one process."""
_TOO_LATE = ConnectionError("redis did not reply in time")


class RedisCounters:
    """`UsageCounters` at one Redis. Whoever made it opens and closes it."""

    def __init__(
        self,
        address: RedisAddress,
        settings: LimitsStore,
        clock: Clock,
        *,
        prefix: str,
        read_spent: ReadSpentBefore | None = None,
        times: LeaseTimes = LeaseTimes(),  # noqa: B008  # frozen
    ) -> None:
        """`read_spent`: what was spent before, for a Redis that has lost it."""
        self._clock = clock
        self._when_away = settings.when_away
        self._deadline_s = settings.timeout
        self._replica = secrets.token_hex(8).encode()
        self._scripts = Scripts(prefix)
        self._settling = Settling(self._scripts, self._replica)
        self._keeper = Keeper(
            address,
            self._scripts,
            self._settling,
            Refilling(self._scripts, read_spent, clock),
            clock,
            replica=self._replica,
            deadline_s=settings.timeout,
            times=times,
            on_away=self._go_on_alone,
            on_ready=self._go_on_together,
        )
        self._share = OwnShare(clock)
        self._is_settling = False
        self._settling_soon: asyncio.TimerHandle | None = None
        self._head = b""
        self._head_connection = b""
        self._number = 0
        self._num_without = 0

    async def open(self) -> None:
        """As `UsageCounters`."""
        # Nothing is sent before something is counted.
        self._loop = asyncio.get_running_loop()

    async def aclose(self) -> None:
        """As `UsageCounters`."""
        if self._settling_soon is not None:
            self._settling_soon.cancel()
        await self._keeper.aclose()

    def statistics(self) -> SharedStatistics:
        """A snapshot."""
        keeper, settling = self._keeper, self._settling
        return SharedStatistics(
            is_away=keeper.is_away,
            outages=keeper.num_outages,
            replicas=keeper.num_replicas,
            held=len(settling.held),
            waiting=settling.num_waiting,
            swept=keeper.num_swept,
            without=self._num_without,
            dropped=settling.num_unbooked,
        )

    def reserve_nowait(self, wants: tuple[Want, ...]) -> None:
        """Redis has to be asked."""

    async def reserve(self, wants: tuple[Want, ...]) -> Hold | Full | Away:
        """As `UsageCounters`."""
        keeper = self._keeper
        hold_id = self._next_id()
        reply: Reply = None
        try:
            for _ in range(_MOST_TRIES):
                wire = keeper.wire or await keeper.find_wire()
                if wire is None or not wire.has_room or len(self._settling.held) >= _MOST_HELD:
                    break
                if self._settling.is_waiting:
                    # First, so a slot that a call of this process has freed is there for the next one.
                    self._settling.send(wire, keeper.refused)
                asked = _Asked(self, hold_id, wants)
                wire.send(self._reservation(hold_id, wants), asked.hear)
                reply = await asked.wait()
                if type(reply) is bytes:
                    answer = unpack(reply)
                    if answer[0] == 1:
                        return self._hold(hold_id, wants, answer)
                    if answer[0] == 0:
                        return self._full(wants, answer)
                    keeper.look_again()
                elif isinstance(reply, ReplyError):
                    keeper.refused(reply)
                elif reply is _TOO_LATE:
                    break
        except asyncio.CancelledError:
            if reply is LOST:
                self._release(hold_id, wants)
            raise
        if reply is LOST:
            self._release(hold_id, wants)
        return await self._reserve_without(wants)

    def settle(self, hold: Hold, used: Sequence[int]) -> None:
        """As `UsageCounters`: sent with whatever is sent next, at once where it frees a slot, and soon in any case."""
        if not hold.is_counted:
            return
        self._settling.settle(hold, used)
        if self._keeper.wire is None:
            self._share.settle(hold, used)
            return
        for want in hold.wants:
            if type(want) is Slots:
                if not self._is_settling:
                    self._is_settling = True
                    self._loop.call_soon(self._settle_waiting)
                return
        if self._settling_soon is None:
            self._settling_soon = self._loop.call_later(_SETTLE_WITHIN_S, self._settle_waiting)

    async def spent(self, keys: Sequence[str]) -> Sequence[tuple[int, int]] | Away:
        """As `UsageCounters`."""
        wire = await self._keeper.find_wire()
        if wire is None:
            return Away()
        self._settling.send(wire, self._keeper.refused)
        names = [b"%b:budget:%b" % (self._scripts.key, key_of(key).encode()) for key in keys]
        replied = asyncio.gather(*[wire.ask(pack_command(b"HMGET", name, b"spent", b"held")) for name in names])
        try:
            async with asyncio.timeout(self._deadline_s):
                replies = await replied
        except TimeoutError:
            return Away()
        if not all(isinstance(reply, list) for reply in replies):
            return Away()
        return [(spent_of(spent), spent_of(held)) for spent, held in cast(list[tuple[object, object]], replies)]

    def _next_id(self) -> bytes:
        self._number += 1
        return self._replica + b"%d" % self._number

    def _reservation(self, hold_id: bytes, wants: tuple[Want, ...]) -> bytes:
        connection = self._keeper.connection
        if connection is not self._head_connection:
            arguments = (self._replica, connection, self._settling.ahead_s)
            self._head, self._head_connection = self._scripts.head("reserve", *arguments, more=2), connection
        packed = pack_wants(wants)
        return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (self._head, len(hold_id), hold_id, len(packed), packed)

    def hear_unwanted(self, id: bytes, wants: tuple[Want, ...], reply: Reply) -> None:
        """A reservation has its reply, and nobody waits for it any more."""
        if reply is LOST or (type(reply) is bytes and unpack(reply)[0] == 1):
            self._release(id, wants)

    def _release(self, id: bytes, wants: tuple[Want, ...]) -> None:
        """Give back what a reservation has got, or may have got."""
        self.settle(Hold(id, wants, ()), (0,) * len(wants))

    def _hold(self, id: bytes, wants: tuple[Want, ...], answer: list[int]) -> Hold:
        hold = Hold(id, wants, left_of(wants, answer[1:]))
        self._settling.hold(hold)
        self._share.see_left(wants, hold.left)
        return hold

    def _full(self, wants: tuple[Want, ...], answer: list[int]) -> Full:
        full = full_of(wants, answer, self._clock.wall())
        self._share.see_left(wants, full.left)
        return full

    async def _reserve_without(self, wants: tuple[Want, ...]) -> Hold | Full | Away:
        self._num_without += 1
        num_replicas = self._keeper.num_replicas
        if self._when_away == "allow":
            return Hold(b"", wants, most_of(wants), is_counted=False)
        if self._when_away == "refuse" or not num_replicas or len(self._settling.held) >= _MOST_HELD:
            # Who has never seen how many count together does not know what his share is.
            return Away()
        answer = await self._share.reserve(self._next_id(), wants, num_replicas, self._settling.held.values())
        if isinstance(answer, Hold):
            self._settling.hold(answer, is_known=False)
        return answer

    def _settle_waiting(self) -> None:
        if self._settling_soon is not None:
            self._settling_soon.cancel()
            self._settling_soon = None
        self._is_settling = False
        wire = self._keeper.wire
        if wire is not None and self._settling.is_waiting:
            self._settling.send(wire, self._keeper.refused)

    def _go_on_alone(self, wire: RedisWire | None) -> None:
        for hear in () if wire is None else wire.due():
            asked = getattr(hear, "__self__", None)
            if isinstance(asked, _Asked):
                asked.give_up()

    def _go_on_together(self) -> None:
        self._share.forget()


class _Asked:
    """A reservation that is on its way."""

    __slots__ = ("_counters", "_id", "_replied", "_wants")

    def __init__(self, counters: RedisCounters, id: bytes, wants: tuple[Want, ...]) -> None:
        self._replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._counters = counters
        self._id = id
        self._wants = wants

    async def wait(self) -> Reply:
        """The reply, or that it comes too late. Cancelled, what it may have got is given back."""
        try:
            return await self._replied
        except asyncio.CancelledError:
            if not self._replied.cancelled():
                self._counters.hear_unwanted(self._id, self._wants, self._replied.result())
            raise

    def hear(self, reply: Reply) -> None:
        """It is replied."""
        if self._replied.done():
            self._counters.hear_unwanted(self._id, self._wants, reply)
        else:
            self._replied.set_result(reply)

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        if not self._replied.done():
            self._replied.set_result(_TOO_LATE)


def build_redis_counters(
    redis: RedisStore, settings: LimitsStore, clock: Clock, read_spent: ReadSpentBefore | None
) -> RedisCounters:
    """Counters at the Redis of a policy file. Raises: ConfigurationError where its URL is not one."""
    address = RedisAddress.from_url(redis.url.get_secret_value())
    return RedisCounters(address, settings, clock, prefix=redis.prefix, read_spent=read_spent)
