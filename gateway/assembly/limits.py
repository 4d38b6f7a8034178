"""What lets calls in under limits and budgets, and where these are counted."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_bytes

from backends.clock import Clock
from gateway.assembly.stores import build_ledger_database
from gateway.ledger.ledger import Ledger
from gateway.limits.budget_view import BudgetView
from gateway.limits.refill import Refill
from gateway.limits.reserving import Reserving
from gateway.limits.spent_before import SpentInLedger
from gateway.limits.warnings import BudgetWarnings
from gateway.runtime import Runtime
from policies.limits.limiter import Limiter
from policies.limits.memory import MemoryCounters
from policies.limits.raises import Raises
from policies.schema import Policy


def build_reserving(
    policy: Policy, clock: Clock, in_force: Callable[[], Runtime], raises: Raises, ledger: Ledger | None
) -> Reserving:
    """For one process, which counts for itself; with others where there is a Redis. `in_force`: once it is open.

    Raises: ConfigurationError.
    """
    warnings = BudgetWarnings()
    spent_before = None
    if policy.ledger is not None and ledger is not None and _may_have_budgets(policy):
        database = build_ledger_database(policy.ledger, is_read_only=True)
        spent_before = SpentInLedger(database, policy.ledger.time_zone, in_force, clock)
    if policy.stores.redis is not None:
        from policies.limits.redis.store import build_redis_counters

        read = None if spent_before is None else spent_before.read
        shared = build_redis_counters(policy.stores.redis, policy.stores.limits, clock, read)
        limiter = Limiter(shared, clock, warnings.tell, raises)
        return Reserving(limiter, warnings, None, BudgetView(limiter, spent_before, clock), clock)
    counters = MemoryCounters(clock, salt=token_bytes(16))
    refill = None
    if spent_before is not None and ledger is not None:
        refill = Refill(spent_before, counters, ledger.wait_adopted, clock)
    limiter = Limiter(counters, clock, warnings.tell, raises)
    return Reserving(limiter, warnings, refill, BudgetView(limiter, spent_before, clock), clock)


def _may_have_budgets(policy: Policy) -> bool:
    """Whether a rule has one, or a key, or one that is made later."""
    of_keys = any(key.budget is not None for key in policy.keys)
    return bool(policy.budgets) or of_keys or policy.stores.keys is not None
