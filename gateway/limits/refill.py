"""Budgets that are counted in memory begin with what the ledger says was spent in their windows before."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from backends.clock import Clock
from gateway.ledger.report import Period, costs
from gateway.sql.database import Database
from policies.limits.memory import MemoryCounters
from policies.limits.rules import Asker, Budget
from policies.loop import Loop

_logger = logging.getLogger(__name__)
_NOBODY = dict.fromkeys(Asker.__struct_fields__, "")


class Refill:
    """Reads the ledger at the start; if that is away, again and again until it is there.

    The ledger's sums are those of its days. A budget of another time zone is told of the whole day in which its window
    began: too much, and never too little. Where no sums tell a budget's calls from others, the rows themselves do.
    """

    def __init__(
        self, database: Database, time_zone: str, budgets: Sequence[Budget], counters: MemoryCounters, clock: Clock
    ) -> None:
        """`time_zone`: the ledger's."""
        self._database = database
        self._time_zone = time_zone
        self._budgets = budgets
        self._counters = counters
        self._clock = clock
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
        now_s = self._clock.wall()
        for budget in self._budgets:
            window = budget.windows.at(now_s)
            since = None
            if window.first_day is not None:
                since = datetime.fromtimestamp(window.begins_at, ZoneInfo(self._time_zone)).date()
            period = Period(since, None, self._time_zone)
            for who, spent in (await asyncio.to_thread(self._spent, budget, period)).items():
                self._counters.put_spent(budget.counter(who, window), spent, window.ends_at)
        self._is_done.set()

    def _spent(self, budget: Budget, period: Period) -> Counter[str]:
        """Pico-dollars by whom the budget counts together."""
        spent: Counter[str] = Counter()
        by = sorted(budget.depends_on | {"tenant"})
        for values, cost in costs(self._database, by, period):
            asker = Asker(**{**_NOBODY, **dict(zip(by, values, strict=True))})
            for who in budget.whom(asker):
                spent[who] += cost
        return spent
