"""Whether the process still lives: its loops go on, and what cannot go on ends it instead of leaving it half dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from backends.clock import Clock
from policies.failures import Failures
from policies.loop import Loop

_logger = logging.getLogger(__name__)


class Vitals:
    """Runs the loops that the gateway cannot be without, from `start` to `aclose`.

    `failure` is the reason why the process cannot go on, or None. Once it is set, /ready is 503 and the process ends.
    """

    def __init__(self, loops: Mapping[str, Callable[[], Awaitable[None]]], clock: Clock) -> None:
        self.failure: str | None = None
        self._loops = {Loop(name, clock): run for name, run in loops.items()}
        self._strays = Failures("event_loop", clock)
        self._is_closing = False

    @property
    def failures(self) -> list[Failures]:
        """Failure counts: one of each loop, and one for errors that belong to no loop."""
        return [*(loop.failures for loop in self._loops), self._strays]

    def start(self) -> None:
        """Begin, on the running event loop, whose own failures are counted from here on."""
        asyncio.get_running_loop().set_exception_handler(self._note_stray)
        for loop, run in self._loops.items():
            loop.start(run).add_done_callback(self._note_end)

    async def aclose(self) -> None:
        """End every loop. Safe to call twice."""
        self._is_closing = True
        for loop in self._loops:
            await loop.aclose()

    def fail(self, reason: str) -> None:
        """The process cannot go on; the first reason is kept."""
        if self.failure is None:
            self.failure = reason
            _logger.critical("the gateway cannot go on: %s", reason)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not self._is_closing:
            error = None if task.cancelled() else task.exception()
            self.fail(f"{task.get_name()} has ended" + (f" with {type(error).__name__}: {error}" if error else ""))

    def _note_stray(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Counts an exception that no code awaits: one raised in a timer, or in a task whose result is never read."""
        error = context.get("exception")
        self._strays.note(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))
