"""The counters of limits and budgets in this process: exact, for nothing here waits between a look and a change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol
from zlib import crc32

import msgspec

from backends.clock import Clock
from policies.limits.counters import Full, Hold, Rate, Slots, Spend, Want

_MAX_COUNTERS = 200_000
"""Of all kinds. About 250 bytes each."""
_NUM_SHARED = 4096
"""Those that names beyond the bound share. What several have used is counted against each: early, never late."""
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
    __slots__ = ("capacity", "level", "num_held", "per_minute", "seen_at")

    def __init__(self, want: Rate, now: float) -> None:
        self.level: float = want.capacity
        self.seen_at = now
        self.num_held = 0
        self.per_minute = want.per_minute
        self.capacity = want.capacity

    def take(self, want: Rate, now: float) -> int | None:
        """What is left to others afterwards; None where it does not fit."""
        per_minute, capacity = want.per_minute, want.capacity
        amount = want.amount if want.amount < capacity else capacity
        level = self.level + (now - self.seen_at) * per_minute / 60.0
        if level > capacity:
            level = capacity
        self.seen_at = now
        self.per_minute = per_minute
        self.capacity = capacity
        if level < amount:
            self.level = level
            return None
        self.level = level = level - amount
        self.num_held += 1
        return int(level)

    def settle(self, want: Rate, used: int) -> None:
        self.num_held -= 1
        reserved = want.amount if want.amount < want.capacity else want.capacity
        if used != reserved:
            level = self.level - used + reserved
            self.level = level if level < want.capacity else want.capacity

    def wait_s(self, want: Rate, wall_s: float) -> float | None:
        return (min(want.amount, want.capacity) - self.level) * 60.0 / want.per_minute

    def left(self, want: Rate, now: float) -> int:
        level = self.level + (now - self.seen_at) * want.per_minute / 60.0
        return max(0, int(min(level, want.capacity)))

    def is_needed(self, now: float, wall_s: float) -> bool:
        return self.num_held > 0 or self.level + (now - self.seen_at) * self.per_minute / 60.0 < self.capacity


class _Budget:
    __slots__ = ("ends_at", "held", "spent")

    def __init__(self, ends_at: float | None) -> None:
        self.spent = 0
        self.held = 0
        self.ends_at = ends_at

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
        return self.held > 0 or self.ends_at is None or self.ends_at > wall_s - _KEPT_S


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


class _MemoryHold(Hold, frozen=True):
    """With the counters themselves, which are not forgotten while a call holds something of them."""

    counters: Sequence[_Counter] = ()


def _new(want: Want, now: float) -> _Counter:
    if type(want) is Rate:
        return _Bucket(want, now)
    return _Budget(want.ends_at) if type(want) is Spend else _Places()


class MemoryCounters:
    """UsageCounters of one process, which it forgets at its end; `put_spent` gives it what was spent before."""

    def __init__(self, clock: Clock, max_counters: int = _MAX_COUNTERS) -> None:
        self._clock = clock
        self._max_counters = max_counters
        self._counters: OrderedDict[str, _Counter] = OrderedDict()
        self._until_look = _LOOK_EVERY

    def __len__(self) -> int:
        return len(self._counters)

    async def open(self) -> None:
        """Nothing to acquire."""

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def reserve(self, wants: tuple[Want, ...]) -> Hold | Full:
        """All of these or none; does not wait."""
        now = self._clock.now()
        counters = self._counters
        if len(counters) >= self._max_counters:
            wants = tuple(map(self._shared, wants))
        held: list[_Counter] = []
        lefts: list[int] = []
        for want in wants:
            counter = counters.get(want.key)
            if counter is None:
                counter = counters[want.key] = _new(want, now)
            left = counter.take(want, now)
            if left is None:
                return self._full(wants, held, counter, now)
            held.append(counter)
            lefts.append(left)
        return _MemoryHold(b"", wants, tuple(lefts), counters=held)

    def settle(self, hold: Hold, used: Sequence[int]) -> None:
        """The call is over."""
        assert isinstance(hold, _MemoryHold), "it is one of this store"
        for want, counter, amount in zip(hold.wants, hold.counters, used, strict=True):
            counter.settle(want, amount)
        self._until_look -= 1
        if not self._until_look:
            self._until_look = _LOOK_EVERY
            self._forget_some(self._clock.now(), self._clock.wall())

    async def spent(self, keys: Sequence[str]) -> Sequence[tuple[int, int]]:
        """Pico-dollars spent and held."""
        known = [self._counters.get(key) for key in keys]
        return [(each.spent, each.held) if isinstance(each, _Budget) else (0, 0) for each in known]

    def statistics(self) -> None:
        """There is no store that could be away."""

    def put_spent(self, key: str, spent: int, ends_at: float | None) -> None:
        """What was spent of a budget as somebody else knows it, who may know of more than this process has counted."""
        budget = self._counters.setdefault(key, _Budget(ends_at))
        assert isinstance(budget, _Budget), "a key is of one kind"
        budget.spent = max(budget.spent, spent)

    def _full(self, wants: Sequence[Want], held: Sequence[_Counter], full: _Counter, now: float) -> Full:
        """Give back what the wants before the one that does not fit have got."""
        for want, counter in zip(wants, held, strict=False):
            counter.settle(want, 0)
        index = len(held)
        wait_s = full.wait_s(wants[index], self._clock.wall())
        known = [self._counters.get(want.key) or _new(want, now) for want in wants]
        lefts = [counter.left(want, now) for want, counter in zip(wants, known, strict=True)]
        return Full(index, wait_s, tuple(lefts))

    def _shared(self, want: Want) -> Want:
        """The same of a counter that there is, or that many share: names that clients invent must not fill memory."""
        if want.key in self._counters:
            return want
        number = crc32(want.key.encode("utf-8")) % _NUM_SHARED
        return msgspec.structs.replace(want, key=f"#{type(want).__name__}{number}")

    def _forget_some(self, now: float, wall_s: float) -> None:
        """Look at those that were not looked at for longest; a call brings fewer new ones."""
        counters = self._counters
        for _ in range(min(_LOOKS, len(counters))):
            key, counter = counters.popitem(last=False)
            if counter.is_needed(now, wall_s):
                counters[key] = counter
