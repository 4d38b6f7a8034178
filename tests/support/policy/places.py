"""Places without a pool, told apart by number, and what an index knows in a form that is easy to compare."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from policies.pool.admission_port import Chooser
from policies.pool.attempts.patience import Patience
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica
from policies.pool.member import Member
from policies.pool.place import Place
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.prices.price import Price
from policies.prices.source import SetPrice
from tests.support.policy.pool import Played


def make_place(
    number: int, breaker: CircuitBreaker, *, replica: Replica | None = None, price: Price | None = None
) -> Place:
    """The place of a backend that is named by its number."""
    name = f"r{number}"
    return Place(
        Member(Played(name), prices=None if price is None else SetPrice(price)), name, breaker, Patience(), replica
    )


class Numbered:
    """A balancer as its own, with places given and named by their number."""

    def __init__(self, places: Sequence[Place], balancer: Chooser) -> None:
        self._balancer = balancer
        self._numbers = {place: number for number, place in enumerate(places)}

    def choose(self, tried: Collection[int] = (), match: Match | None = None) -> int | None:
        """The number of the place to ask."""
        chosen = self._balancer.choose({place for place, number in self._numbers.items() if number in tried}, match)
        return None if chosen is None else self._numbers[chosen]

    def retry_in_s(self) -> float | None:
        """As the balancer's."""
        return self._balancer.retry_in_s()


def depths(index: PrefixIndex, blocks: Sequence[int]) -> dict[int, int]:
    """By slot how many of the first `blocks` a replica holds; those with none are left out."""
    found: dict[int, int] = {}
    for slots, depth in index.match(blocks):
        for slot in range(slots.bit_length()):
            if slots >> slot & 1:
                found.setdefault(slot, depth)
    return found
