"""How likely proposed tokens are to come true, learned from those that were judged."""

from __future__ import annotations


class Acceptance:
    """The share of proposed tokens that were accepted, of those that were judged; old ones fade.

    `start` is what to believe before the first, `weight` that of one judged token.
    """

    __slots__ = ("_weight", "rate")

    def __init__(self, start: float, weight: float) -> None:
        self.rate = start
        self._weight = weight

    def add(self, num_proposed: int, num_accepted: int) -> None:
        """Notes one verification. Tokens behind the first rejected one were never judged."""
        num_judged = min(num_accepted + 1, num_proposed)
        kept = (1 - self._weight) ** num_judged
        self.rate = kept * self.rate + (1 - kept) * num_accepted / num_judged
