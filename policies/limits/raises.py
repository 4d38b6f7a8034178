"""Raises of budgets: what is added to a budget for a while, by the budget and by whom it counts together."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Raise(msgspec.Struct, frozen=True, gc=False):
    """So many pico-dollars on top of a budget, until that moment of wall time, in Unix seconds."""

    amount: int
    until: float


class Raises:
    """Of one process: the calls look at them, and who follows their store puts in all that there are."""

    def __init__(self) -> None:
        self.known: Mapping[tuple[str, str], Raise] = {}
        """By the name of a budget and by whom it counts together; those that are over may still be among them."""

    def added(self, budget: str, who: str, wall_s: float) -> int:
        """Pico-dollars on top of that budget now."""
        raised = self.known.get((budget, who))
        return raised.amount if raised is not None and wall_s < raised.until else 0
