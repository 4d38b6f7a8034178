"""The counters of limits and budgets in this process: exact, for nothing here waits between a look and a change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import floor
from typing import Any, Protocol
from zlib import crc32

import msgspec

from backends.clock import Clock
from policies.limits.counters import INVENTED, Full, Hold, Rate, Slots, Spend, Want
from policies.limits.sketch import SpentSketch

_MAX_INVENTED = 200_000
"""Counters of names that clients choose, of all kinds. About 250 bytes each."""
_NUM_SHARED = 64
"""Of a tenant and a rule: rates and slots that names beyond the bound share. What several have used is counted against
each: early, never late, and never against somebody else's."""
_LOOK_EVERY = 16
_LOOKS = 128
"""Each so many calls it is looked whether so many counters are still needed."""
_KEPT_S = 3600.0
"""So long is known what a window came to that is over, in case the clock is set back."""
_AGAIN_S = 1.0
"""Where nobody knows when there will be room, for others only hold it."""


class _Counter(Protocol):
    def take(self, want: Any, now: float) -> int | None: ...
    def settle(self, want: Any, used: int) -> None: ...
    def wait_s(self, want: Any, wall_s: float) -> float | None: ...
    def left(self, want: Any, now: float) -> int: ...
    def is_needed(self, now: float, wall_s: float) -> bool: ...


class _Bucket:
    __slots__ = ("asked", "level", "num_held", "seen_at")

    def __init__(self, want: Rate, now: float) -> None:
        self.level: float = want.capacity
        self.seen_at = now
        self.num_held = 0
        self.asked = want
        """Last: how the bucket is bounded now."""

    def take(self, want: Rate, now: float) -> int | None:
        """What is left to others afterwards; None where it does not fit."""
        capacity, amount = want.capacity, want.amount
        level = self.level + (now - self.seen_at) * want.per_minute / 60.0
        if level > capacity:
            level = capacity
        self.seen_at = now
        self.asked = want
        if amount > level:
            if level < capacity or amount <= capacity:
                self.level = level
                return None
            amount = want.taken
        self.level = level = level - amount
        self.num_held += 1
        return floor(level)

    def settle(self, want: Rate, used: int) -> None:
        self.num_held -= 1
        taken = want.amount if want.amount < want.capacity else want.taken
        if used != taken:
            level = self.level - used + taken
            self.level = level if level < want.capacity else want.capacity

    def wait_s(self, want: Rate, wall_s: float) -> float | None:
        return (min(want.amount, want.capacity) - self.level) * 60.0 / want.per_minute

    def left(self, want: Rate, now: float) -> int:
        level = self.level + (now - self.seen_at) * want.per_minute / 60.0
        return floor(min(level, want.capacity))

    def is_needed(self, now: float, wall_s: float) -> bool:
        return self.num_held > 0 or self.left(self.asked, now) < self.asked.capacity


class _Budget:
    __slots__ = ("_over_since", "ends_at", "held", "spent")

    def __init__(self, ends_at: float | None, spent: int = 0) -> None:
        self.spent = spent
        self.held = 0
        self.ends_at = ends_at
        self._over_since: float | None = None

    def take(self, want: Spend, now: float) -> int | None:
        """What is left to others afterwards; None where it does not fit."""
        held = self.held
        rest = want.most - self.spent - held
        left = rest - want.worst
        if left < 0 and (held or rest <= 0):
            return None
        self.held = held + want.worst
        return left

    def settle(self, want: Spend, used: int) -> None:
        self.held -= want.worst
        self.spent += used

    def wait_s(self, want: Spend, wall_s: float) -> float | None:
        if self.spent < want.most:
            return _AGAIN_S
        return None if want.ends_at is None else max(0.0, want.ends_at - wall_s)

    def left(self, want: Spend, now: float) -> int:
        return want.most - self.spent - self.held

    def is_needed(self, now: float, wall_s: float) -> bool:
        if self.held or self.ends_at is None:
            return self.held > 0 or self.spent > 0
        if self.ends_at > wall_s:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = now
        # By the clock that does not jump: the other may be an hour or a year ahead, and be set right again.
        return self._over_since is None or now - self._over_since < _KEPT_S


class _Places:
    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0

    def take(self, want: Slots, now: float) -> int | None:
        """What is left to others afterwards; None where it does not fit."""
        left = want.most - self.taken - 1
        if left < 0:
            return None
        self.taken += 1
        return left

    def settle(self, want: Slots, used: int) -> None:
        self.taken -= 1

    def wait_s(self, want: Slots, wall_s: float) -> float | None:
        return _AGAIN_S

    def left(self, want: Slots, now: float) -> int:
        return max(0, want.most - self.taken)

    def is_needed(self, now: float, wall_s: float) -> bool:
        return self.taken > 0


class MemoryCounters:
    """UsageCounters of one process, which it forgets at its end; `put_spent` gives it what was spent before.

    Counters of names that clients choose are bounded: beyond that what was spent goes to a sketch, and rates and slots
    are shared with others of the same tenant. Those of keys, tenants and whatever else a policy names are as many as
    these.
    """

    def __init__(self, clock: Clock, max_invented: int = _MAX_INVENTED, *, salt: bytes = b"") -> None:
        """`salt`: of the sketch."""
        self._clock = clock
        self._max_invented = max_invented
        self._num_invented = 0
        self._salt = salt
        self._sketch: SpentSketch | None = None
        self._counters: OrderedDict[str, _Counter] = OrderedDict()
        self._until_look = _LOOK_EVERY

    def __len__(self) -> int:
        return len(self._counters)

    async def open(self) -> None:
        """Nothing to acquire."""

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def reserve(self, wants: tuple[Want, ...]) -> Hold | Full:
        """As `reserve_nowait`."""
        return self.reserve_nowait(wants)

    def reserve_nowait(self, wants: tuple[Want, ...]) -> Hold | Full:
        """All of these or none."""
        now = self._clock.now()
        counters = self._counters
        if self._num_invented >= self._max_invented:
            wants = tuple(map(self._bounded, wants))
        held: list[_Counter] = []
        lefts: list[int] = []
        for want in wants:
            counter = counters.get(want.key)
            if counter is None:
                counter = counters[want.key] = self._new(want, now)
                self._num_invented += INVENTED in want.key
            left = counter.take(want, now)
            if left is None:
                return self._full(wants, held, counter, now)
            held.append(counter)
            lefts.append(left)
        # The counters themselves, which are not forgotten while a call holds something of them.
        return Hold(b"", wants, tuple(lefts), True, held)

    def settle(self, hold: Hold, used: Sequence[int]) -> None:
        """The call is over."""
        for counter, want, amount in zip(hold.own, hold.wants, used, strict=True):
            counter.settle(want, amount)
        self._until_look -= 1
        if not self._until_look:
            self._until_look = _LOOK_EVERY
            self._forget_some(self._clock.now(), self._clock.wall(), makes_room=False)

    async def spent(self, keys: Sequence[str]) -> Sequence[tuple[int, int]]:
        """Pico-dollars spent and held."""
        known = [(key, self._counters.get(key)) for key in keys]
        return [
            (each.spent, each.held) if isinstance(each, _Budget) else (self._spent_before(key), 0)
            for key, each in known
        ]

    def statistics(self) -> None:
        """There is no store that could be away."""

    def put_spent(self, key: str, spent: int, ends_at: float | None) -> None:
        """What was spent of a budget as somebody else knows it, who may know of more than this process has counted."""
        budget = self._counters.get(key)
        if budget is None:
            if self._num_invented >= self._max_invented and INVENTED in key:
                self._put_aside(key, spent)
                return
            budget = self._counters[key] = _Budget(ends_at)
            self._num_invented += INVENTED in key
        assert isinstance(budget, _Budget), "a key is of one kind"
        budget.spent = max(budget.spent, spent)

    def _full(self, wants: Sequence[Want], held: Sequence[_Counter], full: _Counter, now: float) -> Full:
        """Give back what the wants before the one that does not fit have got."""
        for want, counter in zip(wants, held, strict=False):
            counter.settle(want, 0)
        index = len(held)
        wait_s = full.wait_s(wants[index], self._clock.wall())
        known = [self._counters.get(want.key) or self._new(want, now) for want in wants]
        lefts = [counter.left(want, now) for want, counter in zip(wants, known, strict=True)]
        return Full(index, wait_s, tuple(lefts))

    def _new(self, want: Want, now: float) -> _Counter:
        """One that was forgotten says the same as a new one."""
        if type(want) is Rate:
            return _Bucket(want, now)
        return _Budget(want.ends_at, self._spent_before(want.key)) if type(want) is Spend else _Places()

    def _bounded(self, want: Want) -> Want:
        """The same, once there is room for its counter if that can be made, or of a counter that many share."""
        before, invented, name = want.key.partition(INVENTED)
        if not invented or want.key in self._counters:
            return want
        self._forget_some(self._clock.now(), self._clock.wall(), makes_room=True)
        # Budgets that find no room are those of calls under way, which are bounded.
        if self._num_invented < self._max_invented or type(want) is Spend:
            return want
        return msgspec.structs.replace(want, key=f"{before}#{crc32(name.encode()) % _NUM_SHARED}")

    def _forget_some(self, now: float, wall_s: float, *, makes_room: bool) -> None:
        """Look at those that were not looked at for longest; a call brings fewer new ones.

        Where room is to be made, what was spent under names that clients choose goes to the sketch.
        """
        counters = self._counters
        for _ in range(min(_LOOKS, len(counters))):
            if makes_room and self._num_invented < self._max_invented:
                return
            key, counter = counters.popitem(last=False)
            if counter.is_needed(now, wall_s):
                if not (makes_room and type(counter) is _Budget and not counter.held and INVENTED in key):
                    counters[key] = counter
                    continue
                self._put_aside(key, counter.spent)
            self._num_invented -= INVENTED in key

    def _put_aside(self, key: str, spent: int) -> None:
        if self._sketch is None:
            self._sketch = SpentSketch(self._salt)
        self._sketch.put(key, spent)

    def _spent_before(self, key: str) -> int:
        """What is known of a name that is not counted by itself."""
        return 0 if self._sketch is None or INVENTED not in key else self._sketch.most(key)
