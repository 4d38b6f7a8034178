"""Reserves what a call may use, under all limits and budgets that concern it, and settles what it has used."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from math import floor
from typing import NamedTuple

import msgspec

from backends.charges.charge import Charge
from backends.clock import Clock
from backends.errors import BudgetSpent, CostUnknown, LimitReached, SlipstreamError, StoreUnavailable
from backends.protocol import Facts
from policies.failures import Failures
from policies.limits.counters import Away, Full, Hold, Rate, Slots, Spend, UsageCounters, Want
from policies.limits.plan import AskPlan
from policies.limits.raises import Raises
from policies.limits.rules import UNBOUNDED, Ask, AskDollars, Budget
from policies.prices.price import PICO_PER_DOLLAR
from policies.turn_end import TurnEnd

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
    """What a call holds, and by which plan it has asked: for all of that, or for what limits have. `worst`: the most
    that it can cost, in pico-dollars, where budgets hold that for it.
    """

    hold: Hold
    plan: AskPlan
    route: str
    worst: int | None = None


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
        self.failures = Failures("limits", clock)
        """Of settling."""
        self._over = TurnEnd(self._settle, self.failures)

    async def reserve(
        self,
        plan: AskPlan,
        route: str,
        prompt_tokens: int,
        most_output_tokens: int,
        worst: int | None,
        unknown: str = "",
        waived: Collection[Budget] = (),
    ) -> Grant | Instead | Refused | None:
        """Hold what a call of that plan may use; None where nothing limits it.

        `worst` is what it costs at most, in pico-dollars; None where nobody knows, and `unknown` says why. `waived`
        budgets count it only.
        Cancelled, the call holds nothing.
        """
        if worst is None:
            for budget in plan.budgets:
                if budget.terms.unmetered == "refuse":
                    self.refused[budget.name, "unmetered"] += 1
                    return Refused(
                        CostUnknown(
                            f"nobody knows what this call will cost ({unknown}), so the budget {budget.title} cannot "
                            "bear it: leave that out, or have it priced, or let the budget say `unmetered: allow`"
                        )
                    )
        # What can cost nothing is none of a budget's business.
        has_budgets = worst != 0
        if not has_budgets and not plan.wants:
            return None
        wants: list[Want] = [*plan.wants]
        if plan.tokens:
            mean = self._mean_tokens.get(route, _FIRST_MEAN_TOKENS)
            tokens = prompt_tokens + (most_output_tokens if most_output_tokens < mean else floor(mean))
            for place, ask_tokens in plan.tokens:
                wants[place] = ask_tokens.want(tokens)
        most = 0
        if has_budgets:
            # What is larger than any budget is let in where it is alone, or not at all.
            most, wall_s, raises = worst or 0, self._clock.wall(), self.raises
            if most > UNBOUNDED:
                most = UNBOUNDED
            for ask_dollars in plan.dollars:
                wants.append(ask_dollars.want(most, wall_s, waived, raises))  # noqa: PERF401  # there are few, mostly one
        asked = tuple(wants)
        counters = self.counters
        answer = counters.reserve_nowait(asked) or await counters.reserve(asked)
        if type(answer) is Full and self._over.flush():
            # Nobody is refused for what calls hold that are over.
            answer = await counters.reserve(asked)
        if type(answer) is Hold:
            # Where the store is away and nobody counts, there is nothing to see.
            if has_budgets and answer.is_counted:
                self._look_at_budgets(plan, answer)
            return Grant(answer, plan, route, most or None)
        if isinstance(answer, Away):
            return Refused(StoreUnavailable("the store of limits does not answer, and nobody goes on without it"))
        assert isinstance(answer, Full), "there is no other answer"
        ask = plan.asks[answer.index]
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

    def settle(self, grant: Grant, facts: Facts) -> None:
        """The call is over: attempts that still run, for others or to their end, are waited for, and then it has used
        what upstreams have worked on for it, and what they take for that.

        Calls that end in one turn of the event loop are settled together, at its end.
        """
        self._over.add((grant, facts))

    def flush(self) -> None:
        """Settle now what is over."""
        self._over.flush()

    def _settle(self, over: tuple[Grant, Facts]) -> None:
        grant, facts = over
        tokens = cost = 0
        for charge in facts.charges or ():
            if not charge.is_settled:
                charge.when_settled(self._again(over))
                return
            cost += charge.cost or 0
            if charge.usage is not None:
                tokens += charge.usage.prompt_tokens + charge.usage.completion_tokens
        if facts.usage is not None:
            # What later calls of the route are expected to use.
            means = self._mean_tokens
            mean = means.get(grant.route)
            if mean is not None or len(means) < _MAX_LEARNED:
                mean = _FIRST_MEAN_TOKENS if mean is None else mean
                means[grant.route] = mean + _LEARNING_RATE * (facts.usage.completion_tokens - mean)
        hold, plan = grant.hold, grant.plan
        used = list(plan.used)
        for place, _ in plan.tokens:
            used[place] = tokens
        if len(hold.wants) > len(used):
            used += [cost] * len(plan.dollars)
        self.counters.settle(hold, used)

    def _again(self, over: tuple[Grant, Facts]) -> Callable[[Charge], None]:
        return lambda _: self._over.add(over)

    async def pay(self, grant: Grant, cost: int) -> None:
        """More was paid because of a call than its attempts have used: its budgets bear that too, whatever is left."""
        budgets = [want for want in grant.hold.wants if type(want) is Spend]
        wants = tuple([msgspec.structs.replace(want, most=UNBOUNDED, worst=0) for want in budgets])
        answer = await self.counters.reserve(wants)
        if isinstance(answer, Hold):
            self.counters.settle(answer, [cost] * len(wants))

    def _look_at_budgets(self, plan: AskPlan, hold: Hold) -> None:
        place = len(plan.wants)
        for ask in plan.dollars:
            want = hold.wants[place]
            assert type(want) is Spend, "budgets stand last"
            # What this call may cost is not spent yet.
            spent = want.most - hold.left[place] - want.worst
            rule = ask.rule
            if rule.is_of_all:
                self._seen[rule.name] = SeenSpent(spent, want.ends_at)
            if spent >= rule.warn_at:
                self._warn_of(ask, want, spent)
            place += 1

    def _warn_of(self, ask: AskDollars, want: Spend, spent: int) -> None:
        rule = ask.rule
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
