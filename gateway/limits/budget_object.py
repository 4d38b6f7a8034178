"""A budget as the admin API and the command line show it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gateway.ledger.amounts import usd_text
from gateway.limits.budget_view import BudgetState


def budget_object(state: BudgetState) -> dict[str, Any]:
    """A budget as it is shown; amounts are decimal text."""
    until = state.raised_until
    return {
        "object": "budget",
        "budget": state.budget.name,
        "who": state.who,
        "every": state.budget.terms.every,
        "window": state.window.name or None,
        "ends": _moment(state.window.ends_at),
        "usd": usd_text(state.budget.most),
        "raised_usd": usd_text(state.raised),
        "raised_until": _moment(until),
        "spent_usd": usd_text(state.spent),
        "held_usd": usd_text(state.held),
        "left_usd": usd_text(state.most - state.spent),
        "share": round(state.spent / state.most, 4),
        "on_exceed": state.budget.terms.on_exceed,
    }


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
