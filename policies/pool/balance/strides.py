"""Turns by weight among more members than are looked at for each call (`by_weight.py` looks at all of a few)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

from policies.pool.health.breaker import CircuitBreaker


class Strides:
    """Stride scheduling (Waldspurger and Weihl, 1995; written from the paper): who is due first goes, and is due again
    after a stride that is as short as its weight is large. Over any full cycle the shares are exact.

    A turn costs a few steps of a heap; who is out of rotation lets it pass.
    """

    def __init__(self, members: Sequence[tuple[int, int, CircuitBreaker]]) -> None:
        """Index, weight and breaker of each."""
        # Half a stride from the beginning: who is due seldom does not come in the first round of all.
        self._due = [(0.5 / weight, index, 1.0 / weight, breaker) for index, weight, breaker in members]
        heapq.heapify(self._due)

    def next(self, tried: Collection[int], is_candidate: Callable[[CircuitBreaker], bool]) -> int | None:
        """The index of the one whose turn it is; None if all are out of rotation or in `tried`."""
        passed = []
        chosen = None
        while self._due and chosen is None:
            due, index, stride, breaker = entry = self._due[0]
            if index in tried:
                # It has had its attempt of this call, and keeps its turn.
                passed.append(heapq.heappop(self._due))
            elif breaker.is_settled or is_candidate(breaker):
                chosen = index
                heapq.heapreplace(self._due, (due + stride, index, stride, breaker))
            else:
                heapq.heappop(self._due)
                passed.append((due + stride, *entry[1:]))
        for entry in passed:
            heapq.heappush(self._due, entry)
        return chosen
