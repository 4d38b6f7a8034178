"""A task that has to go on: where it fails, that is counted and told, and it begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from backends.clock import Clock
from policies.failures import Failures

_PAUSE_S = 1.0


class Loop:
    """Calls what goes on for ever from `start` to `aclose`; a second after it has failed, it is called again.

    `name` is what log and metrics call it.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.failures = Failures(name, clock)
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.failures.work

    def start(self, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin. The task ends when it is closed, or else by what nothing can go on after.

        Only the task holds `run`, so an owner whose method it is goes without the garbage collector once it is closed.
        """
        self._task = asyncio.get_running_loop().create_task(self._keep_running(run), name=self.name)
        return self._task

    async def aclose(self) -> None:
        """End it, and wait for that. Safe to call twice, and where it was never begun."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _keep_running(self, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
            except asyncio.CancelledError as error:
                if _is_being_ended():
                    raise
                # What it waited for was cancelled, not the loop.
                self.failures.note(error)
            except Exception as error:  # the border of background work: later turns are needed
                self.failures.note(error)
            await self._clock.sleep(_PAUSE_S)


def _is_being_ended() -> bool:
    """Whether the running task is cancelled. No frame may hold it: its error holds the frame, it the error."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
