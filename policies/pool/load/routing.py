"""How one route balances by load: reads calls for it, and knows the replicas behind the route's members."""

from __future__ import annotations

from collections.abc import Sequence

from backends.operations import Operation
from backends.protocol import Call
from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.by_weight import Balancer
from policies.pool.balance.pick import Picker, PickerCounters
from policies.pool.balance.share import Share
from policies.pool.load.demand import Demand, read_demand
from policies.pool.load.match import Match, look_up
from policies.pool.load.replica import Replica
from policies.pool.prompts.engine_text import EngineText
from policies.pool.prompts.prefix_index import PrefixIndex


class Routing:
    """A pool's eyes on load. Without a `picker` its members take turns by weight, and are only counted.

    `replicas` are those of the pool's members, in order.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        index: PrefixIndex,
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
        self._index = index
        self._picker = picker
        self._wants_blocks = wants_blocks
        self._text = text
        self._model = model

    def read(self, call: Call) -> Demand:
        """What the call asks for, for every attempt of it."""
        wants_blocks = self._wants_blocks and call.operation is not Operation.PASSTHROUGH
        written = self._text.read(call, self._model) if wants_blocks and self._text is not None else None
        return read_demand(call, wants_blocks=wants_blocks, written=written)

    def match(self, demand: Demand) -> Match:
        """Who holds how much of its prompt now; looked up anew for each decision."""
        return look_up(demand, self._index)

    def balancer(self, shares: Sequence[Share]) -> Balancer | LoadBalancer:
        """A balancer for some of the members."""
        return Balancer(shares) if self._picker is None else LoadBalancer(shares, self._picker)
