"""Long work on the event loop, done a slice at a time so that calls go on beside it."""

from __future__ import annotations

import asyncio

from backends.clock import Clock

_SLICE_S = 0.001


class Slices:
    """Whoever works long awaits `give_way` between two steps: others run once a millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = clock.now() + _SLICE_S

    async def give_way(self) -> None:
        """Let others run, if it is time to."""
        if self._clock.now() >= self._until:
            await asyncio.sleep(0)
            self._until = self._clock.now() + _SLICE_S
