"""Lets calls in under limits and budgets: reserves before the stack is asked, settles once every attempt has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from backends.operations import Metering, Operation, Terms
from backends.protocol import Charge, Facts
from gateway.http.auth import Principal
from gateway.limits.headers import rate_headers
from gateway.limits.refill import Refill
from gateway.limits.warnings import BudgetWarnings
from gateway.record.exchange import Exchange
from gateway.runtime import Runtime, Stack
from policies.limits.limiter import Grant, Instead, Limiter, Refused
from policies.limits.rules import Asker, Budget, Used
from policies.limits.worst import most_output, refers_elsewhere, unmetered_part
from policies.prices.price import Price

_BYTES_PER_TOKEN = 4
_LEAST_BYTES_PER_TOKEN = 2
"""Of texts that tokenizers know badly; a budget is asked for what a call costs at most."""
_USUAL_MOST_TOKENS = 4096
"""Of an answer whose length the client does not bound."""
_MOST_UNSEEN_TOKENS = 200_000
"""Of pictures, files and earlier answers in a prompt: what fits the context of most models."""


class Asked(NamedTuple):
    """What a request asks for, as far as its price depends on it."""

    num_bytes: int
    most_output_tokens: int
    """Of all answers together."""
    is_metered: bool
    """Whether its answer tells all that it costs."""
    cost: int | None = None
    """Pico-dollars, where it costs that whatever its answer tells."""
    refers_elsewhere: bool = False
    """Whether its prompt may be longer than its bytes say."""


class Reserving:
    """Of one process."""

    def __init__(self, limiter: Limiter, warnings: BudgetWarnings, refill: Refill | None) -> None:
        """`refill`: where what was spent before is not known to the counters themselves."""
        self.limiter = limiter
        self._warnings = warnings
        self._refill = refill

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
        await self.limiter.counters.aclose()

    async def let_in(self, asked: Asked, stack: Stack, exchange: Exchange, runtime: Runtime) -> Stack:
        """The stack that takes the call: that of its route, or of a cheaper one where a budget is spent.

        What the call holds is kept with the exchange, until `settle`. Raises: LimitReached, BudgetSpent, CostUnknown,
        StoreUnavailable.
        """
        principal = exchange.principal
        waived: list[Budget] = []
        while True:
            route = stack.policy.name
            asker = Asker(
                principal.tenant,
                principal.key,
                principal.team,
                principal.tags,
                exchange.user,
                exchange.session,
                exchange.agent,
                exchange.model,
                route,
            )
            plan = runtime.rules.plan(asker, principal.rules)
            if not plan.asks:
                return stack
            answer = await self.limiter.reserve(
                plan,
                route=route,
                prompt_tokens=asked.num_bytes // _BYTES_PER_TOKEN,
                most_output_tokens=asked.most_output_tokens,
                worst=partial(worst_cost, asked, stack, exchange.model),
                waived=waived,
            )
            if answer is None:
                return stack
            if type(answer) is Grant:
                exchange.grant = answer
                exchange.rate_headers = rate_headers(answer.hold.wants, answer.asks, answer.hold.left)
                return stack
            if isinstance(answer, Refused):
                exchange.rate_headers = rate_headers(answer.wants, answer.asks, answer.left)
                raise answer.error
            assert isinstance(answer, Instead), "there is no other answer"
            waived.append(answer.budget)
            stack = runtime.stacks[answer.route]

    def settle(self, exchange: Exchange) -> None:
        """The exchange is over. Attempts that still run, for others or to their end, are waited for."""
        grant = exchange.grant
        if grant is None:
            return
        exchange.grant = None
        facts = exchange.facts
        running = [charge for charge in facts.charges or () if not charge.is_settled]
        if running:
            _Late(self, grant, facts, len(running)).wait_for(running)
        else:
            self.settle_now(grant, facts)

    def settle_now(self, grant: Grant, facts: Facts) -> None:
        """Every attempt has ended."""
        tokens = cost = 0
        for charge in facts.charges or ():
            cost += charge.cost or 0
            if charge.usage is not None:
                tokens += charge.usage.prompt_tokens + charge.usage.completion_tokens
        answered = facts.usage
        self.limiter.settle(grant, Used(tokens, cost), None if answered is None else answered.completion_tokens)


class _Late:
    """Settles what a call holds when the last of its attempts has ended."""

    def __init__(self, reserving: Reserving, grant: Grant, facts: Facts, num_running: int) -> None:
        self._reserving = reserving
        self._grant = grant
        self._facts = facts
        self._num_running = num_running

    def wait_for(self, running: list[Charge]) -> None:
        for charge in running:
            charge.when_settled(self._one_less)

    def _one_less(self, _: Charge) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._reserving.settle_now(self._grant, self._facts)


def has_budget(runtime: Runtime, principal: Principal) -> bool:
    """Whether a caller has a budget that bears only calls of which somebody knows what they cost."""
    caller = Asker(principal.tenant, principal.key, principal.team, principal.tags, "", "", "", "", "")
    return runtime.rules.has_budget(caller, principal.rules)


def asked_of(operation: Operation, body: Mapping[str, Any] | None, num_bytes: int, terms: Terms | None = None) -> Asked:
    """What a request asks for; its body is None where it cannot be read. `terms`: of one that only passes through."""
    most = most_output(body, operation)
    tokens = _USUAL_MOST_TOKENS if most.tokens is None else most.tokens
    is_metered, cost = bool(operation.traits.prompt), None
    if terms is not None:
        # Of what cannot be read nobody knows how much it asks for.
        is_metered = terms.metering is Metering.METERED and body is not None
        tokens = tokens if terms.writes_text else 0
        if terms.metering is Metering.FLAT:
            cost = terms.flat_cost
        elif terms.metering is Metering.FREE:
            # The least that there is, so that with a spent budget nothing begins.
            cost = 0 if terms.is_reading else 1
    is_metered = is_metered and unmetered_part(body, operation) is None
    return Asked(
        num_bytes,
        tokens * most.choices * most.prompts,
        is_metered=is_metered,
        cost=cost,
        refers_elsewhere=refers_elsewhere(body, operation),
    )


def worst_cost(asked: Asked, stack: Stack, model: str) -> int | None:
    """Pico-dollars that a call for a model costs at most, whoever answers it; None where nobody knows."""
    if asked.cost is not None or not asked.is_metered:
        return asked.cost
    prompt_tokens = asked.num_bytes // _LEAST_BYTES_PER_TOKEN
    if asked.refers_elsewhere:
        prompt_tokens += _MOST_UNSEEN_TOKENS
    worst = 0
    for price in _prices(stack, model):
        if price is None:
            return None
        worst = max(worst, price.most(prompt_tokens, asked.most_output_tokens))
    return worst


def _prices(stack: Stack, model: str) -> Iterator[Price | None]:
    yield from stack.pool.prices_of(model)
    for below in stack.below:
        yield from _prices(below, model)
