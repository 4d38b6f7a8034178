"""What a route says of one of its backends, with the backend."""

from __future__ import annotations

from dataclasses import dataclass

from backends.protocol import Backend
from policies.prices.price import Price
from policies.prices.source import PriceSource


@dataclass(frozen=True, slots=True)
class Member:
    """A backend's place in a pool. `model` replaces the client's model name; None keeps it. One that `is_new` starts
    slowly. Without `prices` nobody knows what it costs."""

    backend: Backend
    model: str | None = None
    weight: int = 1
    priority: int = 0
    is_new: bool = False
    prices: PriceSource | None = None

    def price_of(self, model: str) -> Price | None:
        """What it takes for a call that asks for that model; None where nobody knows."""
        return None if self.prices is None else self.prices.of(self.model or model)
