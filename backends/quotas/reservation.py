"""What a call that was let in holds of a backend's quota until it is sent."""

from __future__ import annotations

from typing import Protocol


class Reservation(Protocol):
    """Part of a backend's quota that is held for a call before it is sent there."""

    def give_back(self) -> None:
        """It is not sent after all."""
