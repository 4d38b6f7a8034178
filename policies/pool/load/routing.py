"""How one route balances by load: reads calls for it, and knows the replicas behind the route's members."""

from __future__ import annotations

from collections.abc import Sequence

from backends.operations import Operation
from backends.protocol import Call
from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.by_weight import Balancer, Share
from policies.pool.balance.pick import Picker, PickerCounters
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.demand import Demand, read_demand
from policies.pool.load.replica import Replica
from policies.pool.prompts.engine_text import EngineText
from policies.price import Price


class Routing:
    """A pool's eyes on load. Without a `picker` its members take turns by weight, and are only counted.

    `replicas` and `prices` are those of the pool's members, in order.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        prices: Sequence[Price],
        *,
        picker: Picker | None,
        counters: PickerCounters,
        wants_blocks: bool,
        text: EngineText | None = None,
        model: str | None = None,
    ) -> None:
        """`text`: how engines behind it write, where they tell what they hold; `model`: what all are asked for, where
        that is not the client's word."""
        self.replicas = tuple(replicas)
        self.counters = counters
        self._prices = tuple(prices)
        self._picker = picker
        self._wants_blocks = wants_blocks
        self._text = text
        self._model = model

    def read(self, call: Call) -> Demand:
        """What the call asks for, for every attempt of it."""
        wants_blocks = self._wants_blocks and call.operation is not Operation.PASSTHROUGH
        written = self._text.read(call, self._model) if wants_blocks and self._text is not None else None
        return read_demand(call, wants_blocks=wants_blocks, written=written)

    def balancer(self, shares: Sequence[Share], breakers: Sequence[CircuitBreaker]) -> Balancer | LoadBalancer:
        """A balancer for some of the members."""
        if self._picker is None:
            return Balancer(shares, breakers)
        return LoadBalancer(shares, breakers, self.replicas, self._picker, self._prices)
