"""Dates that do not jump: the wall clock at the start of the process plus the monotonic time since then."""

from __future__ import annotations

from backends.clock import Clock


class SteadyWallClock:
    """One for each store, so that all who date its entries mean the same time.

    Where the wall clock is set anew, what is stored neither ages nor grows young.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._offset_s = clock.wall() - clock.now()

    def __call__(self) -> float:
        """Seconds since the Unix epoch."""
        return self._now() + self._offset_s


class SteadyClock:
    """A clock whose wall time does not jump, for those who are handed a clock and date what they keep by it."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.wall = SteadyWallClock(clock)
        self.sleep = clock.sleep
