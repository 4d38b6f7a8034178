"""What the calls of a caller ask for under all rules of a policy, worked out once and kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from policies.limits.counters import Rate, Slots
from policies.limits.rules import Ask, AskDollars, Asker, AskSlot, AskTokens, Budget, Limit, Reached, UsageRule
from policies.limits.settings import BudgetPolicy, LimitPolicy

_MAX_ASKS = 200_000
"""Of all plans that are kept, which may be many for each of many names."""
_MAX_CALLERS = 20_000
_RATES: tuple[Reached, ...] = ("requests", "tokens")


class RatePlace(msgspec.Struct, frozen=True):
    """Where among what is asked for a rate stands, and how it is bounded."""

    place: int
    capacity: int
    each_s: float
    """Until one more has flowed in."""
    told: bytes
    """How many a minute, as headers say it."""


class AskPlan(msgspec.Struct, frozen=True):
    """What calls of an asker ask for: under limits, and behind these under budgets."""

    asks: tuple[Ask, ...]
    wants: tuple[Rate | Slots, ...]
    """What they want under limits, which is all where a call costs nothing; of tokens it is yet to be said how many."""
    used: tuple[int, ...]
    """The same of what a call has used in the end."""
    tokens: tuple[tuple[int, AskTokens], ...]
    """The asks of which these two depend on the call, and where they stand."""
    dollars: tuple[AskDollars, ...]
    budgets: tuple[Budget, ...]
    rates: tuple[tuple[Reached, tuple[RatePlace, ...]], ...]
    """By kind of rate the places of `asks` that ask for it."""


class UsageRules:
    """Those of a policy."""

    def __init__(self, limits: Sequence[LimitPolicy], budgets: Sequence[BudgetPolicy], time_zone: str) -> None:
        """`time_zone`: of budgets that name none."""
        self.budgets = tuple(Budget(policy.name, policy, policy, time_zone) for policy in budgets)
        self.all: tuple[UsageRule, ...] = (
            *(Limit(policy.name, policy, policy) for policy in limits),
            *self.budgets,
        )
        self.depend_on_names = any(rule.depends_on & {"user", "session"} for rule in self.all)
        """Whether users and sessions are told apart: else whoever asks may leave them empty, which is faster."""
        self._plans: dict[tuple[Asker, tuple[UsageRule, ...]], AskPlan] = {}
        self._num_asks = 0
        self._of_callers: dict[tuple[str, ...], tuple[UsageRule, ...]] = {}

    def has_budget(self, caller: Asker, own: tuple[UsageRule, ...]) -> bool:
        """Whether a caller has one that bears only what is known to cost so much."""
        budgets = [rule for rule in (*own, *self.budgets) if isinstance(rule, Budget)]
        return any(budget.terms.unmetered == "refuse" and budget.may_concern(caller) for budget in budgets)

    def seen(self) -> list[AskPlan]:
        """What those that have called lately ask for."""
        return list(self._plans.values())

    def plan(self, asker: Asker, own: tuple[UsageRule, ...]) -> AskPlan:
        """For a call; `own` are the rules that its key has of its own."""
        call = (asker, own)
        plan = self._plans.get(call)
        if plan is None:
            plan = _plan_of((*own, *self._of_caller(asker)), asker)
            # One that asks for nothing is kept too.
            self._num_asks += len(plan.asks) + 1
            if self._num_asks > _MAX_ASKS:
                self._plans.clear()
                self._num_asks = len(plan.asks) + 1
            self._plans[call] = plan
        return plan

    def _of_caller(self, asker: Asker) -> tuple[UsageRule, ...]:
        """Those that may concern a caller. Clients invent models and sessions, and never another caller: so thousands
        of rules are not looked through for each name.
        """
        caller = (asker.tenant, asker.key, asker.team, asker.tags)
        rules = self._of_callers.get(caller)
        if rules is None:
            if len(self._of_callers) >= _MAX_CALLERS:
                self._of_callers.clear()
            rules = self._of_callers[caller] = tuple(rule for rule in self.all if rule.may_concern(asker))
        return rules


def _plan_of(rules: Iterable[UsageRule], asker: Asker) -> AskPlan:
    asks = [ask for rule in rules for who in rule.whom(asker) for ask in rule.asks(who)]
    of_limits = tuple(ask for ask in asks if not isinstance(ask, AskDollars))
    of_budgets = tuple(ask for ask in asks if isinstance(ask, AskDollars))
    return AskPlan(
        asks=of_limits + of_budgets,
        wants=tuple(ask.want(1) if isinstance(ask, AskTokens) else ask.want for ask in of_limits),
        used=tuple(0 if isinstance(ask, AskSlot) else 1 for ask in of_limits),
        tokens=tuple((place, ask) for place, ask in enumerate(of_limits) if isinstance(ask, AskTokens)),
        dollars=of_budgets,
        budgets=tuple(dict.fromkeys(ask.rule for ask in of_budgets)),
        rates=tuple((kind, places) for kind in _RATES if (places := _rate_places(of_limits, kind))),
    )


def _rate_places(asks: Sequence[Ask], kind: Reached) -> tuple[RatePlace, ...]:
    return tuple(
        RatePlace(place, ask.capacity, 60 / ask.per_minute, b"%d" % ask.per_minute)
        for place, ask in enumerate(asks)
        if not isinstance(ask, AskSlot | AskDollars) and ask.kind == kind
    )
