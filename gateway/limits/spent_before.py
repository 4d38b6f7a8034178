"""What the ledger says was spent under budgets, in the windows that are open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import NamedTuple, Protocol

from backends.clock import Clock
from gateway.http.auth import Principal
from gateway.ledger.report import Period, costs
from gateway.sql.database import Database
from policies.limits.counters import SpentBefore
from policies.limits.plan import UsageRules
from policies.limits.rules import Asker, Budget
from policies.limits.windows import Window
from policies.time_zone import zone_of

_NOBODY = dict.fromkeys(Asker.__struct_fields__, "")


class KnownCallers(Protocol):
    """Who may call."""

    def named(self, name: str, tenant: str) -> Principal | None:
        """The caller with the key of that name, if it is one of that tenant."""


class BudgetsInForce(Protocol):
    """Whose budgets are looked at: those of a policy, and of its keys."""

    @property
    def rules(self) -> UsageRules:
        """Those of the policy."""

    @property
    def keyring(self) -> KnownCallers:
        """Whose keys may have their own."""


class Spent(NamedTuple):
    """Pico-dollars of a budget that were spent in a window, by all that it counts together."""

    budget: Budget
    who: str
    window: Window
    amount: int


class SpentInLedger:
    """Of the budgets of the policy in force, and of those that keys have of their own.

    The ledger's sums are those of its days. A budget of another time zone is told of the whole day in which its window
    began: too much, and never too little. Where no sums tell a budget's calls from others, the rows themselves do.
    """

    def __init__(
        self, database: Database, time_zone: str, in_force: Callable[[], BudgetsInForce], clock: Clock
    ) -> None:
        """`time_zone`: the ledger's."""
        self._database = database
        self._zone = zone_of(time_zone)
        self._in_force = in_force
        self._clock = clock

    async def read(self) -> Sequence[SpentBefore]:
        """By counter. Raises whatever the ledger's store comes to."""
        return [
            SpentBefore(each.budget.counter(each.who, each.window), each.amount, each.window.ends_at)
            for each in await self.by_budget()
        ]

    async def by_budget(self) -> Sequence[Spent]:
        """The same, by whom. Raises whatever the ledger's store comes to."""
        in_force, now_s = self._in_force(), self._clock.wall()
        return await asyncio.to_thread(lambda: [*self._of_rules(in_force, now_s), *self._of_keys(in_force, now_s)])

    def _of_rules(self, in_force: BudgetsInForce, now_s: float) -> Iterator[Spent]:
        for budget in in_force.rules.budgets:
            window = budget.windows.at(now_s)
            by = sorted(budget.depends_on | {"tenant"})
            yield from _of_budget(budget, window, self._askers(by, self._first_day(window)))

    def _of_keys(self, in_force: BudgetsInForce, now_s: float) -> Iterator[Spent]:
        """Keys with the same terms have one budget; sums are read once for each window that one of them has."""
        askers = {asker: _own_budgets(in_force, asker) for asker, _ in self._askers(["key", "tenant"], None)}
        budgets = {budget for own in askers.values() for budget in own}
        spent_since: dict[date | None, list[tuple[Asker, int]]] = {}
        for budget in budgets:
            window = budget.windows.at(now_s)
            since = self._first_day(window)
            if since not in spent_since:
                spent_since[since] = [*self._askers(["key", "tenant"], since)]
            of_budget = [(asker, cost) for asker, cost in spent_since[since] if budget in askers.get(asker, ())]
            yield from _of_budget(budget, window, of_budget)

    def _askers(self, by: Sequence[str], since: date | None) -> Iterator[tuple[Asker, int]]:
        for values, cost in costs(self._database, by, Period(since, None)):
            yield Asker(**{**_NOBODY, **dict(zip(by, values, strict=True))}), cost

    def _first_day(self, window: Window) -> date | None:
        """The ledger's day in which the window began."""
        return None if window.first_day is None else datetime.fromtimestamp(window.begins_at, self._zone).date()


def _own_budgets(in_force: BudgetsInForce, asker: Asker) -> Sequence[Budget]:
    principal = in_force.keyring.named(asker.key, asker.tenant)
    return [] if principal is None else [rule for rule in principal.rules if isinstance(rule, Budget)]


def _of_budget(budget: Budget, window: Window, askers: Iterable[tuple[Asker, int]]) -> Iterator[Spent]:
    spent: Counter[str] = Counter()
    for asker, cost in askers:
        for who in budget.whom(asker):
            spent[who] += cost
    for who, amount in spent.items():
        yield Spent(budget, who, window, amount)
