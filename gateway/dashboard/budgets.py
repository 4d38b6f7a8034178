"""Budgets for the page: who has used how much, and when it ends at this pace."""

from __future__ import annotations

from typing import Any

from gateway.dashboard.access import Scope
from gateway.ledger.amounts import usd_text
from gateway.limits.budget_object import budget_object
from gateway.limits.budget_view import BudgetState

_LEAST_SHARE_GONE = 0.02
"""Of a window: before, nobody can tell a pace."""


def shown_budgets(states: list[BudgetState], scope: Scope, now_s: float) -> list[dict[str, Any]]:
    """Those that may be seen, nearest to their end first."""
    return [
        {
            **budget_object(state),
            "ends_at_pace": ends_at_pace(state, now_s),
            "by_its_end_usd": None if (likely := by_its_end(state, now_s)) is None else usd_text(likely),
        }
        for state in states
        if scope.tenant is None or state.budget.is_of(state.who, scope.tenant)
    ]


def ends_at_pace(state: BudgetState, now_s: float) -> float | None:
    """When it will be spent if all goes on as it did in this window, in seconds since the Unix epoch; None where it
    lasts until the window ends, or where that cannot be told.
    """
    window = state.window
    if window.ends_at is not None and 0 < state.most <= state.spent:
        return now_s
    gone = _share_gone(state, now_s)
    if gone is None or window.ends_at is None or state.spent <= gone * state.most:
        return None
    return window.begins_at + (now_s - window.begins_at) * state.most / state.spent


def by_its_end(state: BudgetState, now_s: float) -> int | None:
    """What will have been spent when its window ends, if all goes on so, in pico-dollars; None where none can tell."""
    gone = _share_gone(state, now_s)
    return None if gone is None else int(state.spent / gone)


def _share_gone(state: BudgetState, now_s: float) -> float | None:
    """Of its window; None where that has no end, or has hardly begun."""
    window = state.window
    if window.ends_at is None:
        return None
    gone = (now_s - window.begins_at) / (window.ends_at - window.begins_at)
    return min(gone, 1.0) if gone >= _LEAST_SHARE_GONE else None
