"""Where a backend's prices come from: the policy, or a provider's list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from backends.clock import Clock
from policies.prices.listed import ListedModel, PriceList
from policies.prices.price import Price

_FRESH_S = 60.0
"""As long is a price taken for the same: lists have days, and times of the day."""
_MAX_MODELS = 4096
"""Clients choose the names."""


class PriceSource(Protocol):
    """What a backend takes, by the model that it is asked for."""

    def of(self, model: str) -> Price | None:
        """None where nobody knows."""


class SetPrice(msgspec.Struct, frozen=True):
    """One price for all models, as the policy says."""

    price: Price

    def of(self, model: str) -> Price | None:
        """The same for each."""
        return self.price


def set_prices(sources: Sequence[PriceSource | None]) -> tuple[Price | None, ...] | None:
    """What those sources say of any model, where the policy alone says it."""
    if not all(source is None or isinstance(source, SetPrice) for source in sources):
        return None
    return tuple([None if source is None else source.of("") for source in sources])


class RenamedPrices(msgspec.Struct, frozen=True):
    """Those of another model, whichever is asked for."""

    prices: PriceSource
    model: str

    def of(self, model: str) -> Price | None:
        """The same for each."""
        return self.prices.of(self.model)


class FirstKnown(msgspec.Struct, frozen=True):
    """What the first of several sources says that knows a model."""

    sources: tuple[PriceSource, ...]

    def of(self, model: str) -> Price | None:
        """None where none of them does."""
        for source in self.sources:
            price = source.of(model)
            if price is not None:
                return price
        return None


class ListedPrices:
    """Those of a provider's list. Equal to another one where that reads the same list for the same backend."""

    def __init__(self, listed: PriceList, backend: str, clock: Clock) -> None:
        self._listed = listed
        self._backend = backend
        self._clock = clock
        self._found: dict[str, tuple[float, ListedModel | None, Price | None]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListedPrices) and (self._backend, self._listed) == (other._backend, other._listed)

    def __hash__(self) -> int:
        return hash(self._backend)

    def of(self, model: str) -> Price | None:
        """The price in force. A name that is asked the first time is looked for in the whole list."""
        known = self._found.get(model)
        now_s = self._clock.wall()
        if known is not None and 0 <= now_s - known[0] < _FRESH_S:
            return known[2]
        found = known[1] if known is not None else self._listed.find(self._backend, model)
        price = found.price_at(datetime.fromtimestamp(now_s, UTC)) if found is not None else None
        if known is None and len(self._found) >= _MAX_MODELS:
            self._found.clear()
        self._found[model] = now_s, found, price
        return price
