"""What backends hold of one prompt at one moment: looked up once for a decision, and handed on with it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policies.pool.load.demand import Demand
from policies.pool.prompts.prefix_index import PrefixIndex


class Match(msgspec.Struct, frozen=True, gc=False):
    """A call against the prefix index. `levels` are those of `PrefixIndex.match`."""

    demand: Demand
    levels: Sequence[tuple[int, int]] = ()

    def uncached(self, slot: int) -> int:
        """Tokens that the backend of that slot is likely to have to compute, at least one."""
        demand = self.demand
        for slots, depth in self.levels:
            if slots >> slot & 1:
                return max(1, demand.tokens - demand.ends[depth - 1])
        return demand.tokens


def look_up(demand: Demand, index: PrefixIndex) -> Match:
    """Who holds how much of a prompt now."""
    return Match(demand, index.match(demand.blocks) if demand.blocks else ())
