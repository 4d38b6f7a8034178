"""A task that has to go on: where it fails, that is counted and told, and it begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from backends.clock import Clock
from policies.failures import Failures

_PAUSE_S = 1.0
_CANCEL_EVERY_S = 0.05


class Loop:
    """Calls what goes on for ever from `start` to `aclose`; a second after it has failed, it is called again.

    `name` is what log and metrics call it. `of_service`: it talks to a service that may be away, through a client
    library. Then its failures are expected, and it is cancelled until it ends: such libraries can lose a cancellation.
    """

    def __init__(self, name: str, clock: Clock, *, of_service: bool = False) -> None:
        self.failures = Failures(name, clock, expected=of_service)
        self._clock = clock
        self._cancel_every_s = _CANCEL_EVERY_S if of_service else None
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

    async def aclose(self) -> bool:
        """End it, and wait for that; whether it was begun. Safe to call twice, and where it never was."""
        task = self._task
        if task is None:
            return False
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=self._cancel_every_s)
        self._task = None
        return True

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
