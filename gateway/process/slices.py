"""Long work on the event loop, done a slice at a time so that calls go on beside it."""

from __future__ import annotations

import asyncio

from backends.clock import Clock

_SLICE_S = 0.001


class Slices:
    """For a long computation on the event loop: it awaits `give_way` between its steps, so that other tasks run once a
    millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = clock.now() + _SLICE_S

    async def give_way(self) -> None:
        """Let others run, if it is time to."""
        if self._clock.now() >= self._until:
            await asyncio.sleep(0)
            self._until = self._clock.now() + _SLICE_S
