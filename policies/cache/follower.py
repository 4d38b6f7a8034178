"""One task that does the same thing again and again, through whatever goes wrong with the service it follows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from backends.clock import Clock
from policies.cache.redis_queues import end_tasks

_RETRY_S = 1.0

_LOGGER = logging.getLogger(__name__)


class Follower:
    """Calls `follow` from `open` to `aclose`, and a second later where it raised: `num_errors` counts these.

    `name` is what the log calls whoever follows. `follow` must wait for something each time.
    """

    def __init__(self, name: str, follow: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._name = name
        self._follow = follow
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self.num_errors = 0

    def open(self) -> None:
        """Begin."""
        self._is_closing = False
        self._task = asyncio.get_running_loop().create_task(self._follow_until_closed())

    async def aclose(self) -> bool:
        """Stop; whether it was running. Safe to call twice."""
        self._is_closing = True
        if self._task is None:
            return False
        await end_tasks([self._task])
        self._task = None
        return True

    async def _follow_until_closed(self) -> None:
        while not self._is_closing:
            try:
                await self._follow()
            except Exception as error:
                # The border of a background task: whatever the client library comes to, a later Redis needs following.
                self.num_errors += 1
                _LOGGER.debug("%s waits for redis: %s", self._name, type(error).__name__)
                await self._clock.sleep(_RETRY_S)
