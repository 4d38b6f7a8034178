"""Work off the clients' path: bounded in number, ended when its owner closes, and never a reason to fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from backends.errors import SlipstreamError

_logger = logging.getLogger(__name__)


class Background:
    """Runs at most `max_tasks` at once; what finds no room is not begun."""

    def __init__(self, max_tasks: int) -> None:
        self._max_tasks = max_tasks
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.failed = 0

    @property
    def has_room(self) -> bool:
        """Whether `start` would begin another one."""
        return not self._is_closed and len(self._tasks) < self._max_tasks

    def start(self, work: Coroutine[Any, Any, None]) -> bool:
        """Begin it, or say that there is no room."""
        if not self.has_room:
            work.close()
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return True

    async def wait(self) -> None:
        """Wait until what is running now has ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def aclose(self) -> None:
        """Cancel everything and wait for it. Safe to call twice."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await self.wait()

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        self.failed += 1
        if not isinstance(error, SlipstreamError):
            _logger.error("work in the background failed", exc_info=error)
