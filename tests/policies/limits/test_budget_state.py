"""What is told of a budget that counts all calls together: only what a call has seen, and only in its window."""

from __future__ import annotations

from backends.charges.usage import Usage
from backends.protocol import Facts
from policies.limits.counters import UsageCounters
from policies.limits.limiter import Grant, Limiter, Refused
from policies.limits.memory import MemoryCounters
from policies.limits.plan import UsageRules
from policies.limits.raises import Raises
from policies.limits.rules import Asker
from policies.limits.settings import BudgetPolicy
from tests.support.clock import FakeClock
from tests.support.gateway import reserved_port
from tests.support.policy.limits import counting

DOLLAR = 10**12
ANYBODY = Asker("t", "k", "", "", "", "", "curl", "m", "r")
RULES = UsageRules([], [BudgetPolicy(name="day", per="all", usd=3, every="day")], "UTC")
(BUDGET,) = RULES.budgets


async def ask(limiter: Limiter) -> Grant | Refused:
    """A call of a dollar."""
    plan = RULES.plan(ANYBODY, ())
    got = await limiter.reserve(plan, route="r", prompt_tokens=1, most_output_tokens=1, worst=DOLLAR)
    assert isinstance(got, Grant | Refused)
    return got


def facts_of(cost: int) -> Facts:
    """Of a call that came to so much."""
    facts = Facts()
    facts.charge("up", "m").settle_at(cost, Usage(1, 1))
    return facts


def limiter_of(counters: UsageCounters, clock: FakeClock) -> Limiter:
    return Limiter(counters, clock, lambda warning: None, Raises())


async def test_a_budget_is_told_as_the_last_call_saw_it_and_from_its_next_window_on_as_new() -> None:
    """Before the first call nobody knows: another process may have spent something."""
    clock = FakeClock()
    limiter = limiter_of(MemoryCounters(clock), clock)

    assert limiter.state_of(BUDGET) == (3 * DOLLAR, None)
    for _ in range(2):
        grant = await ask(limiter)
        assert isinstance(grant, Grant)
        limiter.settle(grant, facts_of(DOLLAR))
    assert limiter.state_of(BUDGET) == (3 * DOLLAR, DOLLAR)
    held = await ask(limiter)
    assert limiter.state_of(BUDGET) == (3 * DOLLAR, 2 * DOLLAR)
    assert isinstance(await ask(limiter), Refused)
    assert limiter.state_of(BUDGET) == (3 * DOLLAR, 3 * DOLLAR)
    assert isinstance(held, Grant)
    await clock.advance(86400)
    assert limiter.state_of(BUDGET) == (3 * DOLLAR, 0)


async def test_nobody_is_refused_for_what_calls_hold_that_are_over() -> None:
    """They are settled at the end of the loop's turn, or before somebody is refused: he may be next in a pipeline."""
    clock = FakeClock()
    limiter = limiter_of(MemoryCounters(clock), clock)
    grants = [await ask(limiter) for _ in range(3)]

    assert isinstance(await ask(limiter), Refused)
    for grant in grants:
        assert isinstance(grant, Grant)
        limiter.settle(grant, facts_of(0))
    assert isinstance(await ask(limiter), Grant)
    assert sum(limiter.refused.values()) == 1


async def test_calls_that_nobody_counts_tell_nothing() -> None:
    """They go on while Redis is away, and what they see is no state of a budget."""
    clock = FakeClock()
    with reserved_port() as port:
        async with counting(f"redis://127.0.0.1:{port}", when_away="allow") as counters:
            limiter = limiter_of(counters, clock)
            assert isinstance(await ask(limiter), Grant)

    assert limiter.state_of(BUDGET) == (3 * DOLLAR, None)
