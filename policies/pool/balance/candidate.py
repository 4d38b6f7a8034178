"""What pickers choose among: members that may take a call now, with what is known of each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.replica import Replica
from policies.pool.place import Place
from policies.prices.price import Price


class Candidate(msgspec.Struct, frozen=True, eq=False):
    """A place that may be chosen, and what is looked at of it for every call; `weight` is not 0."""

    place: Place
    weight: int
    replica: Replica
    breaker: CircuitBreaker
    price: Price


MayTake = Callable[[Candidate], bool]
"""Whether a candidate may be chosen now."""
