"""Virtual token counters: who has had how much, with a past that fades.

After the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models" (2024), with fading:
without it, who was served alone for a minute would starve for the next. Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping

_MAX_CLIENTS = 10_000
_MAX_DOUBLINGS = 60.0


class Counters:
    """Tokens that each client has had, each counted half after another `half_life_s`.

    Instead of all counters fading, what is charged now counts for more: so that the order of two clients changes only
    when one of them is charged. `era` changes when all numbers have been made smaller at once.
    """

    def __init__(self, half_life_s: float, weights: Mapping[str, float]) -> None:
        self._half_life_s = half_life_s
        self._weights = weights
        self._counted: dict[str, float] = {}
        """In the order in which they were charged last."""
        self._since: float | None = None
        self.era = 0

    def of(self, client: str) -> float:
        """What a client has had. Numbers of one era can be compared."""
        return self._counted.get(client, 0.0)

    def charge(self, client: str, tokens: float, now: float, *, weight: float = 1.0) -> None:
        """A client has had so many tokens more, each of which counts `weight`."""
        if self._since is None:
            self._since = now
        doublings = (now - self._since) / self._half_life_s
        if doublings > _MAX_DOUBLINGS:
            self._begin_era(doublings, now)
            doublings = 0.0
        if self._weights:
            weight /= self._weights.get(client, 1.0)
        # In tokens of the era's beginning; taken out and put back, it is the last in order.
        counted = self._counted
        counted[client] = counted.pop(client, 0.0) + tokens * weight * 2.0**doublings
        if len(counted) > _MAX_CLIENTS:
            self._forget_one()

    def lift(self, client: str, floor: float) -> None:
        """A client that asked for nothing has saved up nothing: it begins no lower than those who wait."""
        counted = self._counted
        if counted.get(client, 0.0) < floor:
            counted.pop(client, None)
            counted[client] = floor
            if len(counted) > _MAX_CLIENTS:
                self._forget_one()

    def _forget_one(self) -> None:
        """The client that has been charged nothing for longest."""
        del self._counted[next(iter(self._counted))]

    def _begin_era(self, doublings: float, now: float) -> None:
        shrink = 2.0 ** -min(doublings, 1000.0)
        for client in self._counted:
            self._counted[client] *= shrink
        self._since = now
        self.era += 1
