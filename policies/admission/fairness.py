"""Virtual token counters: how many tokens each client has been served, where older tokens count for less.

This is the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models" (2024), with decay.
Without decay, a client that was alone for a minute would starve for the next one. Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping

_MAX_CLIENTS = 10_000
_MAX_DOUBLINGS = 60.0


class Counters:
    """The tokens that each client has been served; a token counts half as much after every `half_life_s`.

    Old charges are not scaled down: new ones are scaled up. So the order of two clients changes only when one of them
    is charged, and the queues need not be sorted again as time passes. `era` grows by one when all the numbers have
    been scaled down at once, so that they stay finite; numbers of different eras cannot be compared.
    """

    def __init__(self, half_life_s: float, weights: Mapping[str, float]) -> None:
        self._half_life_s = half_life_s
        self._weights = weights
        self._counted: dict[str, float] = {}
        """In the order of the last charge, the oldest first."""
        self._since: float | None = None
        self.era = 0

    def of(self, client: str) -> float:
        """The weighted tokens of a client, in units of this era."""
        return self._counted.get(client, 0.0)

    def charge(self, client: str, tokens: float, now: float, *, weight: float = 1.0) -> None:
        """Add tokens to a client, each of which counts `weight`."""
        if self._since is None:
            self._since = now
        doublings = (now - self._since) / self._half_life_s
        if doublings > _MAX_DOUBLINGS:
            self._begin_era(doublings, now)
            doublings = 0.0
        if self._weights:
            weight /= self._weights.get(client, 1.0)
        # The unit is a token at the beginning of the era. Removing the entry first makes it the newest in the order.
        counted = self._counted
        counted[client] = counted.pop(client, 0.0) + tokens * weight * 2.0**doublings
        if len(counted) > _MAX_CLIENTS:
            self._forget_one()

    def lift(self, client: str, floor: float) -> None:
        """Raise a client that was idle to at least `floor`, the counter of those who wait.

        Being idle earns no credit: otherwise a client that returns would be served alone until it had caught up.
        """
        counted = self._counted
        if counted.get(client, 0.0) < floor:
            counted.pop(client, None)
            counted[client] = floor
            if len(counted) > _MAX_CLIENTS:
                self._forget_one()

    def _forget_one(self) -> None:
        """Drop the client whose last charge is the longest ago."""
        del self._counted[next(iter(self._counted))]

    def _begin_era(self, doublings: float, now: float) -> None:
        shrink = 2.0 ** -min(doublings, 1000.0)
        for client in self._counted:
            self._counted[client] *= shrink
        self._since = now
        self.era += 1
