"""How many bytes of answers that are read whole are held at once, of all backends together.

A backend's `max_answer` bounds one; this bounds the sum. Where it is spent, whoever reads waits a moment, its
upstream with it, and then gives up. Small answers are not counted: connections bound them, and most are.
"""

from __future__ import annotations

import asyncio
import weakref

from backends.clock import Clock
from backends.errors import TooManyAnswersHeld

UNCOUNTED_BYTES = 64 * 1024
_WAIT_S = 2.0
_RETRY_AFTER_S = 1.0


class AnswerBudget:
    """One per process."""

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._clock = clock
        self._freed = asyncio.Event()

    async def take(self, num_bytes: int) -> None:
        """Hold more, as soon as there is room. Raises: TooManyAnswersHeld where there is none within two seconds."""
        give_up_at = self._clock.now() + _WAIT_S
        while self.num_bytes + num_bytes > self._max_bytes:
            left_s = give_up_at - self._clock.now()
            if left_s <= 0 or num_bytes > self._max_bytes:
                raise TooManyAnswersHeld(
                    f"the gateway holds answers of {self.num_bytes} bytes already; try again in a moment",
                    retry_after_s=_RETRY_AFTER_S,
                )
            self._freed.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._freed.wait()
            except TimeoutError:
                continue
        self.num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """What was taken is free again."""
        self.num_bytes -= num_bytes
        self._freed.set()


class HeldAnswer:
    """What one answer takes of the budget while it is read, and for as long as its reply lives."""

    __slots__ = ("_budget", "num_bytes")

    def __init__(self, budget: AnswerBudget | None) -> None:
        self.num_bytes = 0
        self._budget = budget

    async def grow(self, num_bytes: int) -> None:
        """So many bytes in all are there now. Raises: as `AnswerBudget.take`."""
        if self._budget is not None and num_bytes > UNCOUNTED_BYTES:
            await self._budget.take(num_bytes - self.num_bytes)
            self.num_bytes = num_bytes

    def release(self) -> None:
        """There will be no reply. Safe to call twice."""
        if self._budget is not None and self.num_bytes:
            self._budget.give(self.num_bytes)
            self.num_bytes = 0

    def end_with(self, reply: object) -> None:
        """Given back when the reply, and with it its body, is gone."""
        if self._budget is not None and self.num_bytes:
            # Whoever passes a reply on need not know of this; nobody can forget it.
            weakref.finalize(reply, self._budget.give, self.num_bytes).atexit = False
