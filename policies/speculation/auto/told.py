"""What is lost where the draft answers a call of a simulation: its prompt is made up, and its trace tells the rest."""

from __future__ import annotations

from backends.protocol import Call

DRAFT_LOSS = "draft_loss"
"""The field of such a call's body."""


class ToldLoss:
    """In place of a router."""

    async def open(self) -> None:
        """Nothing has to be looked at."""

    async def loss(self, call: Call) -> float | None:
        """None where the trace says nothing of it."""
        told = call.body.get(DRAFT_LOSS) if call.body is not None else None
        return told if isinstance(told, float) else None
