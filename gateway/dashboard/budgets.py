"""Budgets for the page: who has used how much, and when it ends at this pace."""

from __future__ import annotations

from typing import Any

from gateway.dashboard.access import Scope
from gateway.limits.budget_object import budget_object
from gateway.limits.budget_view import BudgetState

_LEAST_SHARE_GONE = 0.02
"""Of a window: before, nobody can tell a pace."""


def shown_budgets(states: list[BudgetState], scope: Scope, now_s: float) -> list[dict[str, Any]]:
    """Those that may be seen, nearest to their end first."""
    return [
        {**budget_object(state), "ends_at_pace": ends_at_pace(state, now_s)}
        for state in states
        if scope.tenant is None or state.budget.is_of(state.who, scope.tenant)
    ]


def ends_at_pace(state: BudgetState, now_s: float) -> float | None:
    """When it will be spent if all goes on as it did in this window, in seconds since the Unix epoch; None where it
    lasts until the window ends, or where that cannot be told.
    """
    window = state.window
    if window.ends_at is None or state.spent <= 0:
        return None
    gone_s, whole_s = now_s - window.begins_at, window.ends_at - window.begins_at
    if state.spent >= state.most:
        return now_s
    if gone_s < _LEAST_SHARE_GONE * whole_s:
        return None
    end = now_s + gone_s * (state.most - state.spent) / state.spent
    return end if end < window.ends_at else None
