"""One attempt at an upstream, from its going out until what it used is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from backends.charges.usage import Usage


class Pricing(Protocol):
    """What a backend takes for a model. `name` says whose price it is, and which."""

    @property
    def name(self) -> str:
        """Two that differ have two names."""

    def amount(self, usage: Usage) -> int:
        """Whole pico-dollars (1e-12) for an attempt that used so much."""

    def knows(self, service_tier: str) -> bool:
        """Whether an amount in that tier is more than a guess."""


class Charge(msgspec.Struct, eq=False):
    """What one attempt at an upstream used, whether or not its answer reached anybody.

    Opened when the attempt goes out, settled once when the upstream's answer ends, which may be after the call.
    `usage` stays None where nothing is owed: nobody was reached, or the upstream refused. `is_estimated` where it did
    not tell. `cost` is in pico-dollars, None where nobody knows, as without a `price`, or it is not settled yet;
    `is_at_price` where it is what the price says of the usage, no share and not flat. `listeners` asked before the end.
    """

    backend: str
    model: str
    price: Pricing | None = None
    usage: Usage | None = None
    cost: int | None = None
    is_estimated: bool = False
    is_settled: bool = False
    is_at_price: bool = False
    is_kept_by_gateway: bool = False
    """Whether it was the gateway that asked the provider to keep the prompt."""
    is_for_operator: bool = False
    """Whether it was made for the operator's own ends: no budget of the caller's bears it."""
    price_of: Callable[[str], Pricing | None] | None = None
    """What each model costs there; only where another one may answer than was asked, as some calls allow."""
    listeners: tuple[Callable[[Charge], None], ...] = ()

    def settle(self, usage: Usage | None, *, is_estimated: bool = False) -> None:
        """The upstream's answer is over, in whichever way."""
        cost = None if usage is not None or is_estimated else 0
        if usage is not None and self.price is not None and not self.is_settled:
            cost, self.is_at_price = self.price.amount(usage), True
            is_estimated = is_estimated or not self.price.knows(usage.service_tier)
        self.settle_at(cost, usage, is_estimated=is_estimated)

    def settle_at(self, cost: int | None, usage: Usage | None, *, is_estimated: bool = False) -> None:
        """The same where somebody else has worked out what it comes to."""
        if not self.is_settled:
            self.is_settled = True
            self.usage = usage
            self.cost = cost
            self.is_estimated = is_estimated
            for tell in self.listeners:
                tell(self)

    def when_settled(self, tell: Callable[[Charge], None]) -> None:
        """`tell` is called once: now, or at the end."""
        if self.is_settled:
            tell(self)
        else:
            self.listeners = (*self.listeners, tell)
