"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools

_WALL_START_S = 1_700_000_000.0


class FakeClock:
    """A `Clock` in the hands of the test. Whoever sleeps wakes when `advance` passes their moment, in order."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._start = now
        self._ahead_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Monotonic seconds."""
        return self._now

    def wall(self) -> float:
        """Seconds since the Unix epoch, moving with `now`, but where they jump."""
        return _WALL_START_S + self._now - self._start + self._ahead_s

    def jump(self, seconds: float) -> None:
        """The wall clock is set, forwards or back."""
        self._ahead_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has advanced that far; nothing to wait for only gives way."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let time pass: wake sleepers one by one at their own moment, and let each run until it waits again."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await settle()
        self._now = end

    def num_sleeping(self) -> int:
        """How many are waiting now."""
        return sum(not woken.done() for _, _, woken in self._sleepers)


async def settle(rounds: int = 20) -> None:
    """Let every task that can run do so, as far as it gets without time or the network."""
    for _ in range(rounds):
        await asyncio.sleep(0)
