"""Budgets that are counted in memory begin with what the ledger says was spent in their windows before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from backends.clock import Clock
from gateway.limits.spent_before import SpentInLedger
from policies.limits.memory import MemoryCounters
from policies.loop import Loop

_MAX_WAIT_S = 10.0
"""For what a worker has left in its journal: half a million rows."""
_TRY_EVERY_S = 1.0

_logger = logging.getLogger(__name__)


class Refill:
    """Reads the ledger at the start; if that is away, or lacks what was left in a journal, again and again until it is
    whole.
    """

    def __init__(
        self,
        spent_before: SpentInLedger,
        counters: MemoryCounters,
        is_whole: Callable[[float], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        """`is_whole`: whether the ledger has, within so many seconds, what was noted before the start."""
        self._spent_before = spent_before
        self._counters = counters
        self._is_whole = is_whole
        self._clock = clock
        self.loop = Loop("budgets", clock, of_service=True)

    async def open(self) -> None:
        """Wait for the first attempt, so that no call is let in by a budget that is spent."""
        try:
            is_done = await self._refill(_MAX_WAIT_S)
        except Exception as error:  # a named border: a store may fail in any way, and calls go on without it
            self.loop.failures.note(error)
            is_done = False
        if not is_done:
            _logger.warning(
                "what was spent before is not all known yet, the ledger is away or behind: budgets begin with the rest"
            )
            self.loop.start(self._keep_trying)

    async def aclose(self) -> None:
        """End it. Safe to call twice."""
        await self.loop.aclose()

    async def _keep_trying(self) -> None:
        while not await self._refill(_TRY_EVERY_S):
            await self._clock.sleep(_TRY_EVERY_S)
        await asyncio.Event().wait()

    async def _refill(self, limit_s: float) -> bool:
        """Whether the ledger had all that there is to know."""
        is_whole = await self._is_whole(limit_s)
        for each in await self._spent_before.read():
            self._counters.put_spent(each.key, each.spent, each.ends_at)
        return is_whole
