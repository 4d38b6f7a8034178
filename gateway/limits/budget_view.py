"""Who has spent how much of which budget, for people: as the counters have it, of whoever the ledger or this process
knows. No call waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from backends.clock import Clock
from backends.errors import StoreUnavailable
from gateway.limits.spent_before import SpentInLedger
from gateway.process.slices import Slices
from gateway.runtime import Runtime
from policies.limits.counters import Away
from policies.limits.limiter import Limiter
from policies.limits.rules import AskDollars, Budget
from policies.limits.windows import Window

_ASKED_AT_ONCE = 200
_Place = tuple[Budget, str]


class BudgetState(NamedTuple):
    """Of one budget and whom it counts together, in the window that is open; pico-dollars."""

    budget: Budget
    who: str
    window: Window
    spent: int
    held: int | None
    """By calls under way; None where the counters are away."""
    raised: int
    raised_until: float | None

    @property
    def most(self) -> int:
        """What it has now."""
        return self.budget.most + self.raised


class BudgetStates(NamedTuple):
    """All that are known."""

    states: list[BudgetState]
    """Those nearest to their end first."""
    is_whole: bool
    """Whether these are all of whom something is spent; without a ledger only who has called this process is known."""


class BudgetView:
    """Of one process."""

    def __init__(self, limiter: Limiter, spent_before: SpentInLedger | None, clock: Clock) -> None:
        self._limiter = limiter
        self._spent_before = spent_before
        self._clock = clock

    async def states(self, runtime: Runtime, budget: str | None = None) -> BudgetStates:
        """Those of the budget of that name, or all. Raises: StoreUnavailable where nobody knows them."""
        in_ledger, is_whole = await self._in_ledger()
        spent: dict[_Place, int] = dict.fromkeys(_seen(runtime), 0) | in_ledger
        places = [place for place in spent if budget is None or place[0].name == budget]
        now_s = self._clock.wall()
        windows = [place[0].windows.at(now_s) for place in places]
        keys = [place[0].counter(place[1], window) for place, window in zip(places, windows, strict=True)]
        counted = await self._counted(keys)
        if counted is None and not is_whole:
            raise StoreUnavailable("what is spent cannot be told now: the store of limits does not answer; try again")
        slices = Slices(self._clock)
        states = []
        for index, (place, window) in enumerate(zip(places, windows, strict=True)):
            amount, held = (spent[place], None) if counted is None else counted[index]
            states.append(BudgetState(*place, window, amount, held, *self._raised(place, now_s)))
            await slices.give_way()
        await asyncio.to_thread(states.sort, key=by_share)
        return BudgetStates(states, is_whole)

    async def _in_ledger(self) -> tuple[dict[_Place, int], bool]:
        if self._spent_before is None:
            return {}, False
        try:
            found = await self._spent_before.by_budget()
        except StoreUnavailable:
            return {}, False
        return {(each.budget, each.who): each.amount for each in found}, True

    async def _counted(self, keys: Sequence[str]) -> list[tuple[int, int]] | None:
        counted: list[tuple[int, int]] = []
        for first in range(0, len(keys), _ASKED_AT_ONCE):
            answer = await self._limiter.counters.spent(keys[first : first + _ASKED_AT_ONCE])
            if isinstance(answer, Away):
                return None
            counted.extend(answer)
            await asyncio.sleep(0)
        return counted

    def _raised(self, place: _Place, now_s: float) -> tuple[int, float | None]:
        raised = self._limiter.raises.known.get((place[0].name, place[1]))
        return (0, None) if raised is None or raised.until <= now_s else (raised.amount, raised.until)


def _seen(runtime: Runtime) -> list[_Place]:
    """Of whom calls of this process have asked."""
    asks = [ask for plan in runtime.rules.seen() for ask in plan.asks if isinstance(ask, AskDollars)]
    return [(ask.rule, ask.who) for ask in asks]


def by_share(state: BudgetState) -> tuple[float, str, str]:
    """The order in which budgets are shown: those nearest to their end first."""
    return -state.spent / state.most, state.budget.name, state.who
