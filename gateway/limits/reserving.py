"""Lets calls in under limits and budgets: reserves before the stack is asked, settles once every attempt has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from backends.charges.charge import Charge
from backends.clock import Clock
from backends.errors import BudgetSpent
from gateway.http.auth import Principal
from gateway.limits.asked import Asked
from gateway.limits.budget_view import BudgetView
from gateway.limits.headers import rate_headers
from gateway.limits.refill import Refill
from gateway.limits.warnings import BudgetWarnings
from gateway.record.exchange import Exchange
from gateway.runtime import Runtime, Stack
from policies.background import Background
from policies.limits.limiter import Grant, Instead, Limiter, Refused
from policies.limits.rules import Asker, Budget

_MAX_PAYMENTS = 1000
"""At once, each a trip to the counters at most."""


class Reserving:
    """Of one process."""

    def __init__(
        self, limiter: Limiter, warnings: BudgetWarnings, refill: Refill | None, view: BudgetView, clock: Clock
    ) -> None:
        """`refill`: where what was spent before is not known to the counters themselves."""
        self.limiter = limiter
        self.view = view
        """Who has spent how much."""
        self._warnings = warnings
        self._refill = refill
        self._clock = clock
        self._payments = Background(_MAX_PAYMENTS)

    async def open(self) -> None:
        """Acquire what counting needs, and learn what was spent before."""
        await self.limiter.counters.open()
        if self._refill is not None:
            await self._refill.open()

    async def aclose(self) -> None:
        """Give everything back. Safe to call twice."""
        if self._refill is not None:
            await self._refill.aclose()
        await self._warnings.aclose()
        await self._payments.wait()
        await self._payments.aclose()
        self.limiter.flush()
        await self.limiter.counters.aclose()

    async def let_in(self, asked: Asked, stack: Stack, exchange: Exchange, runtime: Runtime) -> Stack:
        """The stack that takes the call: that of its route, or of a cheaper one where a budget is spent.

        What the call holds is kept with the exchange, until `settle`. Raises: LimitReached, BudgetSpent, CostUnknown,
        StoreUnavailable.
        """
        principal, facts, clock = exchange.principal, exchange.facts, self._clock
        is_traced = facts.passed_stages is not None
        rules = runtime.rules
        user, session = (exchange.user, exchange.session) if rules.depend_on_names else ("", "")
        waived: list[Budget] = []
        while True:
            route = stack.policy.name
            asker = Asker(
                principal.tenant,
                principal.key,
                principal.team,
                principal.tags,
                user,
                session,
                exchange.agent,
                exchange.model,
                route,
            )
            plan = rules.plan(asker, principal.rules)
            if not plan.asks:
                return stack
            began_at = clock.now() if is_traced else 0.0
            worst = asked.most(stack, exchange.model) if plan.budgets else 0
            unknown = asked.unknown() if worst is None else ""
            answer = await self.limiter.reserve(
                plan, route, asked.prompt_tokens, asked.most_output_tokens, worst, unknown, waived
            )
            if is_traced:
                facts.passed("limits", began_at, clock, route=route)
            if answer is None:
                return stack
            if type(answer) is Grant:
                exchange.grant = answer
                if plan.budgets:
                    facts.extra = self._bearing(answer)
                exchange.rate_headers = rate_headers(plan, answer.hold.left)
                return stack
            if isinstance(answer, Refused):
                if answer.left:
                    exchange.rate_headers = rate_headers(plan, answer.left)
                raise answer.error
            assert isinstance(answer, Instead), "there is no other answer"
            waived.append(answer.budget)
            cheaper = runtime.stacks.get(answer.route)
            if cheaper is None:
                # Stored keys outlive the routes that their budgets name.
                raise BudgetSpent(f"the budget {answer.budget.title} is spent, and its cheaper route is no more")
            stack = cheaper

    def settle(self, exchange: Exchange) -> None:
        """The exchange is over."""
        grant, exchange.grant = exchange.grant, None
        if grant is not None:
            self.limiter.settle(grant, exchange.facts)

    def _bearing(self, grant: Grant) -> Callable[[Charge], None]:
        """What is asked beside the call, because of it, is paid from the same budgets."""
        return lambda charge: charge.when_settled(partial(self._pay, grant))

    def _pay(self, grant: Grant, charge: Charge) -> None:
        if charge.cost and not charge.is_for_operator:
            self._payments.start(self.limiter.pay(grant, charge.cost))


def has_budget(runtime: Runtime, principal: Principal) -> bool:
    """Whether a caller has a budget that bears only calls of which somebody knows what they cost."""
    caller = Asker(principal.tenant, principal.key, principal.team, principal.tags, "", "", "", "", "")
    return runtime.rules.has_budget(caller, principal.rules)
