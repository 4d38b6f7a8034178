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
"""UsageThose that names beyond the bound share. What several have used is counted against each: early, never late."""
_LOOK_EVERY = 16
_LOOKS = 128
"""Each so many calls it is looked whether so many counters are still needed."""
_KEPT_S = 3600.0
"""So long is known what a window came to that is over, in case the clock is set back."""
_AGAIN_S = 1.0
"""Where nobody knows when there will be room, for others only hold it."""


class _Counter(Protocol):
    def fits(self, want: Any) -> bool: ...
    def wait_s(self, want: Any, wall_s: float) -> float | None: ...
    def left(self, want: Any) -> int: ...
    def take(self, want: Any) -> None: ...
    def settle(self, want: Any, used: int) -> None: ...
    def is_needed(self, now: float, wall_s: float) -> bool: ...


class _Bucket:
    __slots__ = ("full_at", "level", "num_held", "seen_at")

    def __init__(self, want: Rate, now: float) -> None:
        self.level = float(want.capacity)
        self.seen_at = self.full_at = now
        self.num_held = 0

    def look(self, want: Rate, now: float) -> None:
        """Let in what has come since the last time."""
        level = self.level + (now - self.seen_at) * want.per_minute / 60.0
        self.level = level if level < want.capacity else float(want.capacity)
        self.seen_at = now

    def fits(self, want: Rate) -> bool:
        return self.level >= want.amount or self.level >= want.capacity

    def wait_s(self, want: Rate, wall_s: float) -> float | None:
        return (min(want.amount, want.capacity) - self.level) * 60.0 / want.per_minute

    def left(self, want: Rate) -> int:
        return int(self.level) if self.level > 0 else 0

    def take(self, want: Rate) -> None:
        self.num_held += 1
        self._lower(want, want.amount if want.amount < want.capacity else want.capacity)

    def settle(self, want: Rate, used: int) -> None:
        self.num_held -= 1
        reserved = want.amount if want.amount < want.capacity else want.capacity
        if used != reserved:
            self._lower(want, used - reserved)

    def is_needed(self, now: float, wall_s: float) -> bool:
        return self.num_held > 0 or self.full_at > now

    def _lower(self, want: Rate, amount: int) -> None:
        level = self.level - amount
        self.level = level if level < want.capacity else float(want.capacity)
        self.full_at = self.seen_at + (want.capacity - self.level) * 60.0 / want.per_minute


class _Budget:
    __slots__ = ("ends_at", "held", "spent")

    def __init__(self, ends_at: float | None) -> None:
        self.spent = 0
        self.held = 0
        self.ends_at = ends_at

    def fits(self, want: Spend) -> bool:
        rest = want.most - self.spent - self.held
        return rest >= want.worst or (not self.held and rest > 0)

    def wait_s(self, want: Spend, wall_s: float) -> float | None:
        if self.spent < want.most:
            return _AGAIN_S
        return None if want.ends_at is None else max(0.0, want.ends_at - wall_s)

    def left(self, want: Spend) -> int:
        return want.most - self.spent - self.held

    def take(self, want: Spend) -> None:
        self.held += want.worst

    def settle(self, want: Spend, used: int) -> None:
        self.held -= want.worst
        self.spent += used

    def is_needed(self, now: float, wall_s: float) -> bool:
        return self.held > 0 or self.ends_at is None or self.ends_at > wall_s - _KEPT_S


class _Places:
    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0

    def fits(self, want: Slots) -> bool:
        return self.taken < want.most

    def wait_s(self, want: Slots, wall_s: float) -> float | None:
        return _AGAIN_S

    def left(self, want: Slots) -> int:
        return max(0, want.most - self.taken)

    def take(self, want: Slots) -> None:
        self.taken += 1

    def settle(self, want: Slots, used: int) -> None:
        self.taken -= 1

    def is_needed(self, now: float, wall_s: float) -> bool:
        return self.taken > 0


class _MemoryHold(Hold, frozen=True):
    """With the counters themselves, which are not forgotten while a call holds something of them."""

    pairs: Sequence[tuple[Want, _Counter]] = ()


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
        if len(self) >= self._max_counters:
            wants = tuple(map(self._shared, wants))
        pairs = [(want, self._counter(want, now)) for want in wants]
        for index, (want, counter) in enumerate(pairs):
            if not counter.fits(want):
                wait_s = counter.wait_s(want, self._clock.wall())
                return Full(index, wait_s, tuple([each.left(asked) for asked, each in pairs]))
        for want, counter in pairs:
            counter.take(want)
        return _MemoryHold(b"", wants, tuple([counter.left(want) for want, counter in pairs]), pairs=pairs)

    def settle(self, hold: Hold, used: Sequence[int]) -> None:
        """The call is over."""
        assert isinstance(hold, _MemoryHold), "it is one of this store"
        for (want, counter), amount in zip(hold.pairs, used, strict=True):
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
        budget = self._counter(Spend(key, 0, 0, ends_at), self._clock.now())
        assert isinstance(budget, _Budget), "a key is of one kind"
        budget.spent = max(budget.spent, spent)

    def _counter(self, want: Want, now: float) -> _Counter:
        """That of a want, as it is now. One that was forgotten says the same as a new one."""
        counter = self._counters.get(want.key)
        if counter is None:
            if type(want) is Rate:
                counter = _Bucket(want, now)
            elif type(want) is Spend:
                counter = _Budget(want.ends_at)
            else:
                counter = _Places()
            self._counters[want.key] = counter
        elif type(counter) is _Bucket:
            assert type(want) is Rate, "a key is of one kind"
            counter.look(want, now)
        return counter

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
