"""Faults 11 to 14: budgets and spend. Slipstream has none yet, so there is nothing to try, and the table says so."""

from __future__ import annotations

from gateway.selftest.bench import Bench
from gateway.selftest.check import Check
from gateway.selftest.verdict import CheckOutcome, skipped


async def not_built(bench: Bench) -> CheckOutcome:
    """Slipstream keeps no budgets and no spend yet."""
    del bench
    return skipped("not built yet: Slipstream keeps no budgets and no spend")


CHECKS = (
    Check("11", "the store of spend is down: nothing is lost", not_built),
    Check("12", "replicas race one budget: overspend is bounded", not_built),
    Check("13", "streamed, buffered, cut: the same cost", not_built),
    Check("14", "ledger, metrics, dashboard and log agree", not_built),
)
