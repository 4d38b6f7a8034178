"""Calls for a model without a price are turned away, where a route wants to know what it pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.charges.usage import MAX_TIER_CHARS, tier_asked
from backends.errors import CostUnknown
from backends.protocol import Backend, Call, Reply
from policies.prices.price import Price
from policies.stage import Stage


class PriceRequired(Stage):
    """`prices_of` tells what each backend that may answer takes for a model."""

    def __init__(self, inner: Backend, prices_of: Callable[[str], Sequence[Price | None]]) -> None:
        super().__init__(inner)
        self._prices_of = prices_of

    async def send(self, call: Call) -> Reply:
        """As the backend within. Raises: CostUnknown for a model that one of the backends has no price for, or none in
        the service tier that is asked for.
        """
        tier = tier_asked(call.body)
        if any(price is None or price.most(0, 0, service_tier=tier) is None for price in self._prices_of(call.model)):
            hasty = f" as {tier[:MAX_TIER_CHARS]}" if tier else ""
            raise CostUnknown(
                f'nobody knows what "{call.model}" costs{hasty}, and this route takes only models with a price'
            )
        return await self._inner.send(call)
