"""Reserves what a call may use, under all limits and budgets that concern it, and settles what it has used."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection

import msgspec

from backends.clock import Clock
from backends.errors import BudgetSpent, CostUnknown, LimitReached, SlipstreamError, StoreUnavailable
from policies.limits.counters import Away, Full, Hold, Rate, Slots, Spend, UsageCounters, Want
from policies.limits.rules import UNBOUNDED, Asker, Budget, RulePart, UsageRules

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


class Instead(msgspec.Struct, frozen=True):
    """The budget is spent, and calls go to another route. Asked again, it is to be waived."""

    route: str
    budget: Budget


class Grant(msgspec.Struct, frozen=True, eq=False):
    """What a call holds, and for each want of it what that is about."""

    hold: Hold
    parts: tuple[RulePart, ...]
    route: str


class Refused(msgspec.Struct, frozen=True):
    """The call gets nothing. `wants` and `left` as in `Full`."""

    error: SlipstreamError
    wants: tuple[Want, ...] = ()
    parts: tuple[RulePart, ...] = ()
    left: tuple[int, ...] = ()


class Limiter:
    """Of one process. `warn` is told of each budget once in a window, at its first call beyond `warn_at`."""

    def __init__(self, counters: UsageCounters, clock: Clock, warn: Callable[[BudgetWarning], None]) -> None:
        self.counters = counters
        self._clock = clock
        self._warn = warn
        self._told: OrderedDict[str, None] = OrderedDict()
        self._mean_tokens: dict[str, float] = {}
        self.refused: Counter[tuple[str, str]] = Counter()
        """Calls refused, by rule and by what of it was reached."""
        self.warned: Counter[str] = Counter()
        """Warnings, by budget."""

    async def reserve(
        self,
        rules: UsageRules,
        asker: Asker,
        *,
        prompt_tokens: int,
        most_output_tokens: int,
        worst: Callable[[], int | None],
        waived: Collection[Budget] = (),
    ) -> Grant | Instead | Refused | None:
        """Hold what the call may use; None where nothing limits it.

        `worst` says what it costs at most, in pico-dollars; None where nobody knows. `waived` budgets count it only.
        Cancelled, the call holds nothing.
        """
        limits, budgets = rules.of(asker.tenant, asker.key)
        wants: list[Want] = []
        parts: list[RulePart] = []
        if limits:
            mean = self._mean_tokens.get(asker.route, _FIRST_MEAN_TOKENS)
            tokens = prompt_tokens + int(min(most_output_tokens, mean))
            for limit in limits:
                if (who := limit.who(asker)) is not None:
                    limit.ask(who, tokens, wants, parts)
        if budgets:
            refused = self._ask_budgets(budgets, asker, worst, waived, wants, parts)
            if refused is not None:
                return refused
        if not wants:
            return None
        answer = await self.counters.reserve(tuple(wants))
        if type(answer) is Hold:
            for want, part, left in zip(wants, parts, answer.left, strict=True):
                if type(want) is Spend:
                    self._look_whether_to_warn(want, part, left)
            return Grant(answer, tuple(parts), asker.route)
        if isinstance(answer, Away):
            return Refused(StoreUnavailable("the store of limits does not answer, and nobody goes on without it"))
        assert isinstance(answer, Full), "there is no other answer"
        part, want = parts[answer.index], wants[answer.index]
        rule = part.rule
        if isinstance(rule, Budget) and rule.fallback is not None and rule not in waived:
            return Instead(rule.fallback, rule)
        self.refused[rule.name, part.kind] += 1
        return Refused(_error(part, want, answer.retry_after_s), tuple(wants), tuple(parts), answer.left)

    def settle(self, grant: Grant, tokens: int, output_tokens: int | None, cost: int) -> None:
        """The call is over: what upstreams worked on for it, and what they take for that in pico-dollars.

        `output_tokens` of its answer is what later calls of the route are expected to use; None where it had none.
        """
        if output_tokens is not None:
            means = self._mean_tokens
            mean = means.get(grant.route)
            if mean is not None or len(means) < _MAX_LEARNED:
                mean = _FIRST_MEAN_TOKENS if mean is None else mean
                means[grant.route] = mean + _LEARNING_RATE * (output_tokens - mean)
        used = {"requests": 1, "tokens": tokens, "concurrent": 0, "usd": cost}
        self.counters.settle(grant.hold, [used[part.kind] for part in grant.parts])

    def _ask_budgets(
        self,
        budgets: Collection[Budget],
        asker: Asker,
        worst: Callable[[], int | None],
        waived: Collection[Budget],
        wants: list[Want],
        parts: list[RulePart],
    ) -> Refused | None:
        now = self._clock.wall()
        cost: int | None = None
        is_asked = False
        for budget in budgets:
            if (who := budget.who(asker)) is None:
                continue
            if not is_asked:
                cost, is_asked = worst(), True
                if cost == 0:
                    # What can cost nothing is none of their business.
                    break
            if cost is None and budget.policy.unmetered == "refuse":
                self.refused[budget.name, "unmetered"] += 1
                return Refused(
                    CostUnknown(f'nobody knows what this call will cost, so the budget "{budget.name}" cannot bear it')
                )
            # What is larger than any budget is let in where it is alone, or not at all.
            wants.append(budget.want(who, min(cost or 0, UNBOUNDED), now, is_waived=budget in waived))
            parts.append(budget.part)
        return None

    def _look_whether_to_warn(self, want: Spend, part: RulePart, left: int) -> None:
        rule = part.rule
        assert isinstance(rule, Budget), "others have no dollars"
        # What this call may cost is not spent yet.
        spent = want.most - left - want.worst
        if spent < rule.warn_at or want.key in self._told:
            return
        if len(self._told) >= _MAX_WARNED:
            self._told.popitem(last=False)
        self._told[want.key] = None
        self.warned[rule.name] += 1
        who, _, window = want.key.removeprefix(rule.key_prefix).rpartition(":")
        webhook = rule.policy.webhook
        self._warn(
            BudgetWarning(
                rule.name, who, window, spent, rule.most, None if webhook is None else webhook.get_secret_value()
            )
        )


_AGAIN = {
    "day": " for today",
    "week": " for this week",
    "month": " for this month",
    "total": "",
}


def _error(part: RulePart, want: Want, retry_after_s: float | None) -> SlipstreamError:
    rule = part.rule
    if isinstance(rule, Budget):
        policy = rule.policy
        message = f'the budget "{rule.name}" of {policy.usd:g} USD is spent{_AGAIN[policy.every]}'
        return BudgetSpent(message, retry_after_s=retry_after_s)
    if isinstance(want, Slots):
        reached = f"{want.most} calls at once is reached; wait for one to end"
    else:
        assert isinstance(want, Rate), "budgets have another error"
        wait = "" if retry_after_s is None else f"; try again in {max(retry_after_s, 0.001):.3g} s"
        reached = f"{want.per_minute} {part.kind} a minute is reached{wait}"
    return LimitReached(f'the limit "{rule.name}" of {reached}', retry_after_s=retry_after_s)
