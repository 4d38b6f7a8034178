"""Pieces of work that go on beside each other, each known by a key and going on once at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from backends.clock import Clock
from backends.errors import SlipstreamError

_logger = logging.getLogger(__name__)
_HOLD_S = 5.0
"""What failed is left alone for so long."""


class KeyedWork:
    """Runs it, bounded by the number of keys; a failure is logged and never anybody else's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[tuple[object, ...], asyncio.Task[None]] = {}
        self._held_until: dict[tuple[object, ...], float] = {}

    def start(
        self,
        key: tuple[object, ...],
        make: Callable[[], Coroutine[Any, Any, object]],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Begin it, unless it goes on already or has just failed. `on_end` is called however it ends."""
        if key in self._tasks or self._clock.now() < self._held_until.get(key, 0.0):
            return
        self._tasks[key] = asyncio.get_running_loop().create_task(self._run(key, make, on_end))

    async def aclose(self) -> None:
        """Cancel all of it, and wait. Safe to call twice."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _run(
        self,
        key: tuple[object, ...],
        make: Callable[[], Coroutine[Any, Any, object]],
        on_end: Callable[[], None] | None,
    ) -> None:
        try:
            await make()
        except SlipstreamError as error:
            self._hold(key)
            _logger.warning("%s of batches is put off: %s", key[0], error.message)
        except Exception:
            self._hold(key)
            _logger.exception("%s of batches failed", key[0])
        finally:
            del self._tasks[key]
            if on_end is not None:
                on_end()

    def _hold(self, key: tuple[object, ...]) -> None:
        now = self._clock.now()
        self._held_until = {held: until for held, until in self._held_until.items() if until > now}
        self._held_until[key] = now + _HOLD_S
