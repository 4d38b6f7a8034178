"""What lets calls in under limits and budgets, and where these are counted."""

from __future__ import annotations

from secrets import token_bytes

from backends.clock import Clock
from gateway.assembly.stores import build_ledger_database
from gateway.limits.refill import Refill
from gateway.limits.reserving import Reserving
from gateway.limits.warnings import BudgetWarnings
from policies.limits.limiter import Limiter
from policies.limits.memory import MemoryCounters
from policies.limits.plan import UsageRules
from policies.schema import Policy


def build_reserving(policy: Policy, clock: Clock) -> Reserving:
    """For one process, which counts for itself; with others where there is a Redis.

    Raises: ConfigurationError.
    """
    warnings = BudgetWarnings()
    if policy.stores.redis is not None:
        from policies.limits.redis.store import build_redis_counters

        shared = build_redis_counters(policy.stores.redis, policy.stores.limits, clock)
        return Reserving(Limiter(shared, clock, warnings.tell), warnings, None)
    counters = MemoryCounters(clock, salt=token_bytes(16))
    refill = None
    if policy.ledger is not None and policy.budgets:
        database = build_ledger_database(policy.ledger, is_read_only=True)
        budgets = UsageRules((), policy.budgets, policy.time_zone).budgets
        refill = Refill(database, policy.time_zone, budgets, counters, clock)
    return Reserving(Limiter(counters, clock, warnings.tell), warnings, refill)
