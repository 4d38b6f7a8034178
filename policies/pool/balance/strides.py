"""Turns by weight among more members than are looked at for each call (`by_weight.py` looks at all of a few)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

from policies.pool.balance.share import Share
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.place import Place


class Strides:
    """Stride scheduling (Waldspurger and Weihl, 1995; written from the paper): who is due first goes, and is due again
    after a stride that is as short as its weight is large. Over any full cycle the shares are exact.

    A turn costs a few steps of a heap; who is out of rotation lets it pass.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        # Half a stride from the beginning: who is due seldom does not come in the first round of all. The order breaks
        # ties.
        self._due = [(0.5 / each.weight, order, 1.0 / each.weight, each.place) for order, each in enumerate(shares)]
        heapq.heapify(self._due)

    def next(self, tried: Collection[Place], is_candidate: Callable[[CircuitBreaker], bool]) -> Place | None:
        """The place whose turn it is; None if all are out of rotation or in `tried`."""
        passed = []
        chosen = None
        while self._due and chosen is None:
            due, order, stride, place = entry = self._due[0]
            if place in tried:
                # It has had its attempt of this call, and keeps its turn.
                passed.append(heapq.heappop(self._due))
            elif place.breaker.is_settled or is_candidate(place.breaker):
                chosen = place
                heapq.heapreplace(self._due, (due + stride, order, stride, place))
            else:
                heapq.heappop(self._due)
                passed.append((due + stride, *entry[1:]))
        for entry in passed:
            heapq.heappush(self._due, entry)
        return chosen
