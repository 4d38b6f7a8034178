"""What calls of this process hold in Redis, and what they have used, until Redis has it.

Nobody waits for a settlement, and none is lost while Redis is away. One that is sent twice counts once: Redis forgets a
hold with its settlement, and what it never held is booked under an id of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import cast

import msgspec

from policies.limits.counters import Hold, Spend, SpentBefore
from policies.limits.redis.packing import pack_holds, pack_spent, pack_used
from policies.limits.redis.replies import Reply, ReplyError
from policies.limits.redis.scripts import Scripts, pack_word
from policies.limits.redis.wire import LOST, RedisWire

_MAX_AT_ONCE = 200
"""Settlements or holds in one command, which takes Redis about a millisecond."""
_MAX_BUDGETS = 100_000
"""Budgets of which something is waiting to be booked."""


class _Settlement(msgspec.Struct, gc=False):
    hold: Hold
    used: Sequence[int]
    is_repeated: bool = False
    """Whether it was sent before: Redis may have it already."""


class Settling:
    """`send` and `adopt` are told on which connection; `on_refused` is called with an error reply."""

    def __init__(self, scripts: Scripts, replica: bytes) -> None:
        self.held: dict[bytes, Hold] = {}
        """Calls under way, by the id of their hold."""
        self.is_waiting = False
        """Whether there is something to send."""
        self.num_unbooked = 0
        """Amounts that were dropped, for too many budgets were waiting."""
        self.ahead_s = b"0"
        """By how many seconds the clock of Redis is ahead of ours."""
        self._scripts = scripts
        self._replica = replica
        self._head = scripts.head("settle", replica, more=1)
        self._unknown: set[bytes] = set()
        self._settled: deque[_Settlement] = deque()
        self._unbooked: dict[str, tuple[int, float | None]] = {}
        self._booked: deque[tuple[bytes, bytes]] = deque()
        self._num_booked = 0

    @property
    def has_unknown(self) -> bool:
        """Whether calls are under way that Redis has not let in."""
        return bool(self._unknown)

    @property
    def num_waiting(self) -> int:
        """Settlements that are not sent."""
        return len(self._settled)

    def hold(self, hold: Hold, *, is_known: bool = True) -> None:
        """A call is under way. `is_known`: Redis has let it in, or it is let in without."""
        self.held[hold.id] = hold
        if not is_known:
            self._unknown.add(hold.id)

    def settle(self, hold: Hold, used: Sequence[int]) -> None:
        """The call is over."""
        self.held.pop(hold.id, None)
        if hold.id in self._unknown:
            self._unknown.discard(hold.id)
            self._book(hold, used)
        else:
            self._settled.append(_Settlement(hold, used))
            self.is_waiting = True

    def adopt(self, wire: RedisWire, connection: bytes, on_refused: Callable[[ReplyError], None]) -> None:
        """Tell Redis of every call under way: it holds those that it does not hold."""
        holds = list(self.held.values())
        for first in range(0, len(holds), _MAX_AT_ONCE):
            packed = pack_holds([(hold.id, hold.wants) for hold in holds[first : first + _MAX_AT_ONCE]])
            command = self._scripts.command("adopt", self._replica, connection, self.ahead_s, packed)
            wire.send(command, partial(_look_whether_refused, on_refused))
        self._unknown.clear()

    def send(self, wire: RedisWire, on_refused: Callable[[ReplyError], None]) -> None:
        """Send everything that is waiting."""
        self.is_waiting = False
        settled = self._settled
        while settled:
            batch = [settled.popleft() for _ in range(min(len(settled), _MAX_AT_ONCE))]
            packed = pack_used([(each.hold.id.decode(), each.used) for each in batch])
            wire.send(self._head + pack_word(packed), partial(self._hear_settled, batch, on_refused))
        while self._unbooked:
            amounts = [SpentBefore(key, *amount) for key, amount in islice(self._unbooked.items(), _MAX_AT_ONCE)]
            for each in amounts:
                del self._unbooked[each.key]
            self._num_booked += 1
            self._booked.append((self._replica + b"%d" % self._num_booked, pack_spent(amounts)))
        while self._booked:
            booked = self._booked.popleft()
            wire.send(
                self._scripts.command("book", booked[0], self.ahead_s, booked[1]),
                partial(self._hear_booked, booked, on_refused),
            )

    def _hear_settled(self, batch: list[_Settlement], on_refused: Callable[[ReplyError], None], reply: Reply) -> None:
        if reply == 0:
            return
        if isinstance(reply, list):
            for index in cast(list[int], reply):
                if not batch[index].is_repeated:
                    # Redis has lost it, with everything or at a failover.
                    self._book(batch[index].hold, batch[index].used)
            return
        for each in reversed(batch):
            each.is_repeated |= reply is LOST
            self._settled.appendleft(each)
        self.is_waiting = True
        _look_whether_refused(on_refused, reply)

    def _hear_booked(self, booked: tuple[bytes, bytes], on_refused: Callable[[ReplyError], None], reply: Reply) -> None:
        if reply is LOST or isinstance(reply, ReplyError):
            self._booked.append(booked)
            self.is_waiting = True
            _look_whether_refused(on_refused, reply)

    def _book(self, hold: Hold, used: Sequence[int]) -> None:
        """Spent under budgets that did not hold it. What it used of buckets has flowed back meanwhile, or will soon."""
        for want, amount in zip(hold.wants, used, strict=True):
            if type(want) is not Spend or not amount:
                continue
            pico, _ = self._unbooked.get(want.key, (0, None))
            if pico or len(self._unbooked) < _MAX_BUDGETS:
                self._unbooked[want.key] = (pico + amount, want.ends_at)
                self.is_waiting = True
            else:
                self.num_unbooked += 1


def _look_whether_refused(on_refused: Callable[[ReplyError], None], reply: Reply) -> None:
    if isinstance(reply, ReplyError):
        on_refused(reply)
