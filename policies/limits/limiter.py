"""Reserves what a call may use, under all limits and budgets that concern it, and settles what it has used."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from backends.clock import Clock
from backends.errors import BudgetSpent, CostUnknown, LimitReached, SlipstreamError, StoreUnavailable
from policies.limits.counters import Away, Full, Hold, Rate, Slots, Spend, UsageCounters, Want
from policies.limits.plan import AskPlan
from policies.limits.raises import Raises
from policies.limits.rules import UNBOUNDED, Ask, AskDollars, Budget, Expected, Reached
from policies.prices.price import PICO_PER_DOLLAR

_MAX_WARNED = 10_000
_MAX_LEARNED = 10_000
_FIRST_MEAN_TOKENS = 256.0
_LEARNING_RATE = 0.05


class BudgetWarning(msgspec.Struct, frozen=True):
    """A budget comes to its end: so many pico-dollars of `most` are spent, by `who` in the window that began then."""

    budget: str
    who: str
    window: str
    spent: int
    most: int
    webhook: str | None


class SeenSpent(NamedTuple):
    """Pico-dollars that were spent or held of a budget when a call asked last, and when its window is over."""

    amount: int
    ends_at: float | None


class Instead(msgspec.Struct, frozen=True):
    """The budget is spent, and calls go to another route. Asked again, it is to be waived."""

    route: str
    budget: Budget


class Grant(msgspec.Struct, frozen=True, eq=False):
    """What a call holds, and for each want of it who asks."""

    hold: Hold
    asks: tuple[Ask, ...]
    route: str


class Refused(msgspec.Struct, frozen=True):
    """The call gets nothing. `left` as in `Full`, empty where nobody was asked."""

    error: SlipstreamError
    left: tuple[int, ...] = ()


class Limiter:
    """Of one process. `warn` is told of each budget once in a window, at its first call beyond `warn_at`; once more
    where it was raised since and is beyond that share of what it has now.
    """

    def __init__(
        self, counters: UsageCounters, clock: Clock, warn: Callable[[BudgetWarning], None], raises: Raises
    ) -> None:
        self.counters = counters
        self._clock = clock
        self._warn = warn
        self.raises = raises
        self._told: OrderedDict[str, int] = OrderedDict()
        """Budgets in their windows: how large each was when a warning of it went out."""
        self._mean_tokens: dict[str, float] = {}
        self.refused: Counter[tuple[str, str]] = Counter()
        """Calls refused, by rule and by what of it was reached."""
        self.warned: Counter[str] = Counter()
        """Warnings, by budget."""
        self._seen: dict[str, SeenSpent] = {}
        """By budget, of those that count all calls together."""

    async def reserve(
        self,
        plan: AskPlan,
        *,
        route: str,
        prompt_tokens: int,
        most_output_tokens: int,
        worst: int | None,
        waived: Collection[Budget] = (),
    ) -> Grant | Instead | Refused | None:
        """Hold what a call of that plan may use; None where nothing limits it.

        `worst` is what it costs at most, in pico-dollars; None where nobody knows. `waived` budgets count it only.
        Cancelled, the call holds nothing.
        """
        asks = plan.asks
        if worst is None:
            for budget in plan.budgets:
                if budget.terms.unmetered == "refuse":
                    self.refused[budget.name, "unmetered"] += 1
                    message = f"nobody knows what this call will cost, so the budget {budget.title} cannot bear it"
                    return Refused(CostUnknown(message))
            worst = 0
        elif not worst:
            # What can cost nothing is none of a budget's business.
            asks = plan.of_limits
            if not asks:
                return None
        tokens = prompt_tokens + int(min(most_output_tokens, self._mean_tokens.get(route, _FIRST_MEAN_TOKENS)))
        # What is larger than any budget is let in where it is alone, or not at all.
        expected = Expected(tokens, min(worst, UNBOUNDED), self._clock.wall(), waived, self.raises)
        wants = tuple([ask.want(expected) for ask in asks])
        answer = await self.counters.reserve(wants)
        if isinstance(answer, Hold):
            # Where the store is away and nobody counts, there is nothing to see.
            if answer.is_counted:
                for place in range(len(plan.of_limits), len(asks)):
                    self._look_at_budget(asks[place], wants[place], answer.left[place])
            return Grant(answer, asks, route)
        if isinstance(answer, Away):
            return Refused(StoreUnavailable("the store of limits does not answer, and nobody goes on without it"))
        assert isinstance(answer, Full), "there is no other answer"
        ask = asks[answer.index]
        if isinstance(ask, AskDollars) and ask.rule.terms.fallback is not None and ask.rule not in waived:
            return Instead(ask.rule.terms.fallback, ask.rule)
        if isinstance(ask, AskDollars) and ask.rule.is_of_all:
            want = wants[answer.index]
            assert isinstance(want, Spend), "it asks for dollars"
            self._seen[ask.rule.name] = SeenSpent(want.most - answer.left[answer.index], want.ends_at)
        self.refused[ask.rule.name, ask.kind] += 1
        return Refused(_error(ask, wants[answer.index], answer.retry_after_s), answer.left)

    def state_of(self, budget: Budget) -> tuple[int, int | None]:
        """What a budget of all calls together has now, and what of it was spent or held when a call asked last: None
        where no call has, for another process may have spent something.
        """
        now_s = self._clock.wall()
        most = budget.most + self.raises.added(budget.name, "", now_s)
        seen = self._seen.get(budget.name)
        if seen is None:
            return most, None
        return most, 0 if seen.ends_at is not None and seen.ends_at <= now_s else seen.amount

    def settle(self, grant: Grant, tokens: int, cost: int, output_tokens: int | None) -> None:
        """The call is over: `tokens` that upstreams worked on for it, and what they take for that in pico-dollars.

        `output_tokens` of its answer is what later calls of the route are expected to use; None where it had none.
        """
        if output_tokens is not None:
            means = self._mean_tokens
            mean = means.get(grant.route)
            if mean is not None or len(means) < _MAX_LEARNED:
                mean = _FIRST_MEAN_TOKENS if mean is None else mean
                means[grant.route] = mean + _LEARNING_RATE * (output_tokens - mean)
        used: dict[Reached, int] = {"requests": 1, "tokens": tokens, "concurrent": 0, "usd": cost}
        self.counters.settle(grant.hold, [used[ask.kind] for ask in grant.asks])

    async def pay(self, grant: Grant, cost: int) -> None:
        """More was paid because of a call than its attempts have used: its budgets bear that too, whatever is left."""
        budgets = [want for want in grant.hold.wants if type(want) is Spend]
        wants = tuple([msgspec.structs.replace(want, most=UNBOUNDED, worst=0) for want in budgets])
        answer = await self.counters.reserve(wants)
        if isinstance(answer, Hold):
            self.counters.settle(answer, [cost] * len(wants))

    def _look_at_budget(self, ask: Ask, want: Want, left: int) -> None:
        assert isinstance(ask, AskDollars), "budgets stand last"
        assert isinstance(want, Spend), "they ask for dollars"
        rule = ask.rule
        # What this call may cost is not spent yet.
        spent = want.most - left - want.worst
        if rule.is_of_all:
            self._seen[rule.name] = SeenSpent(spent, want.ends_at)
        if spent < rule.warn_at:
            return
        most = rule.most + self.raises.added(rule.name, ask.who, self._clock.wall())
        told = self._told.get(want.key)
        if (told is not None and told >= most) or spent < int(most * rule.terms.warn_at):
            return
        if len(self._told) >= _MAX_WARNED:
            self._told.popitem(last=False)
        self._told[want.key] = most
        self.warned[rule.name] += 1
        window = want.key.rpartition(":")[2]
        self._warn(BudgetWarning(rule.name, ask.who, window, spent, most, rule.webhook))


_AGAIN = {
    "day": " for today",
    "week": " for this week",
    "month": " for this month",
    "total": "",
}


def _error(ask: Ask, want: Want, retry_after_s: float | None) -> SlipstreamError:
    if isinstance(ask, AskDollars):
        terms = ask.rule.terms
        assert isinstance(want, Spend), "it asks for dollars"
        added = (want.most - ask.rule.bound) / PICO_PER_DOLLAR
        raised = f", raised by {added:g}," if added else ""
        message = f"the budget {ask.rule.title} of {terms.usd:g} USD{raised} is spent{_AGAIN[terms.every]}"
        return BudgetSpent(message, retry_after_s=retry_after_s)
    if isinstance(want, Slots):
        reached = f"{want.most} calls at once is reached; wait for one to end"
    else:
        assert isinstance(want, Rate), "budgets have another error"
        wait = "" if retry_after_s is None else f"; try again in {max(retry_after_s, 0.001):.3g} s"
        reached = f"{want.per_minute} {ask.kind} a minute is reached{wait}"
    return LimitReached(f"the limit {ask.rule.title} of {reached}", retry_after_s=retry_after_s)
