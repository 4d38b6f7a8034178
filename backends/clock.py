"""Time as a dependency: nothing else asks the operating system for it, so tests and the simulator can swap it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in seconds, wall time for what people read, and sleep."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""

    def wall(self) -> float:
        """Seconds since the Unix epoch; never used to measure."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""


class SystemClock:
    """The operating system's clock; `now` is the event loop's time base.

    The functions are bound, not wrapped: a request asks for the time about seven times.
    """

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        await asyncio.sleep(seconds)
