"""Budgets that are counted in memory begin with what the ledger says was spent in their windows before."""

from __future__ import annotations

import asyncio
import logging

from backends.clock import Clock
from gateway.limits.spent_before import SpentInLedger
from policies.limits.memory import MemoryCounters
from policies.loop import Loop

_logger = logging.getLogger(__name__)


class Refill:
    """Reads the ledger at the start; if that is away, again and again until it is there."""

    def __init__(self, spent_before: SpentInLedger, counters: MemoryCounters, clock: Clock) -> None:
        self._spent_before = spent_before
        self._counters = counters
        self._is_done = asyncio.Event()
        self.loop = Loop("budgets", clock, of_service=True)

    async def open(self) -> None:
        """Wait for the first attempt, so that no call is let in by a budget that is spent."""
        try:
            await self._refill()
        except Exception as error:  # a named border: a store may fail in any way, and calls go on without it
            self.loop.failures.note(error)
            _logger.warning("what was spent before is not known yet, for the ledger is away: budgets begin at zero")
            self.loop.start(self._keep_trying)

    async def aclose(self) -> None:
        """End it. Safe to call twice."""
        await self.loop.aclose()

    async def _keep_trying(self) -> None:
        if not self._is_done.is_set():
            await self._refill()
        await asyncio.Event().wait()

    async def _refill(self) -> None:
        for each in await self._spent_before.read():
            self._counters.put_spent(each.key, each.spent, each.ends_at)
        self._is_done.set()
