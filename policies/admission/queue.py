"""Those who wait, in the order in which they are served: priority, then who has had least, then whose time is up first.

Pure: nothing here knows a clock or an event loop.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

from backends.protocol import Priority, Slo
from policies.admission.fairness import Counters
from policies.pool.load.demand import Demand


class Waiting:
    """A call that waits. Times are monotonic seconds.

    `deadline` is when its first token is due, `leave_at` the latest moment to send it off. `is_over` once it has been
    sent off or turned away, or its client has left.
    """

    __slots__ = ("arrived_at", "client", "deadline", "demand", "is_over", "leave_at", "priority", "slo")

    def __init__(self, demand: Demand, slo: Slo, *, client: str, priority: Priority, arrived_at: float) -> None:
        self.demand = demand
        self.slo = slo
        self.client = client
        self.priority = priority
        self.arrived_at = arrived_at
        self.deadline = arrived_at + slo.first_token_limit_s(demand.tokens)
        self.leave_at = self.deadline
        self.is_over = False


W = TypeVar("W", bound=Waiting)


class AdmissionQueue(Generic[W]):
    """The calls that wait at one route. `len` is their number, `tokens` those of their prompts."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._classes: list[_Class[W]] = [_Class(counters) for _ in Priority]
        self.tokens = 0
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def add(self, waiting: W) -> None:
        """Someone new."""
        floor = min((each.least() for each in self._classes if each.clients), default=None)
        if floor is not None and all(waiting.client not in each.clients for each in self._classes):
            self._counters.lift(waiting.client, floor)
        self._classes[waiting.priority].add(waiting)
        self._number += 1
        self.tokens += waiting.demand.tokens

    def head(self) -> W:
        """Who is next; there must be one."""
        return next(each for each in self._classes if each.clients).head()

    def next_few(self, number: int) -> list[W]:
        """The head, and those of its client that follow it, or nearly so: no more than `number`."""
        return next(each for each in self._classes if each.clients).next_few(number)

    def rank(self) -> tuple[int, float, float]:
        """Where the head stands beside the heads of other lines: the least goes first."""
        head = self.head()
        return head.priority, self._counters.of(head.client), head.deadline

    def remove(self, waiting: W) -> None:
        """Whoever is over, wherever it stands. Once for each that was added."""
        waiting.is_over = True
        self._classes[waiting.priority].forget(waiting.client)
        self._number -= 1
        self.tokens -= waiting.demand.tokens

    def num_beside(self, waiting: Waiting) -> int:
        """How many calls of the same client and priority stand in the line, itself included where it does."""
        return self._classes[waiting.priority].clients.get(waiting.client, 0)

    def least_deserving(self) -> W:
        """Who goes if there are too many: of the lowest priority, of whoever has most waiting, the last to be due."""
        return next(each for each in reversed(self._classes) if each.clients).least_deserving()


class _Class(Generic[W]):
    """One priority: a heap of calls for each client, and a heap of clients."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.clients: dict[str, int] = {}
        """How many calls of each wait."""
        self._calls: dict[str, list[tuple[float, int, W]]] = {}
        self._order: list[tuple[float, str]] = []
        self._era = counters.era
        self._numbers = itertools.count()

    def add(self, waiting: W) -> None:
        client = waiting.client
        if client not in self.clients:
            self.clients[client] = 0
            self._calls[client] = []
            heapq.heappush(self._order, (self._counters.of(client), client))
        self.clients[client] += 1
        heapq.heappush(self._calls[client], (waiting.deadline, next(self._numbers), waiting))

    def least(self) -> float:
        """The counter of the client that is next."""
        return self._counters.of(self._next())

    def head(self) -> W:
        calls = self._calls[self._next()]
        while calls[0][2].is_over:
            heapq.heappop(calls)
        return calls[0][2]

    def next_few(self, number: int) -> list[W]:
        self.head()
        # The beginning of a heap holds nearly the first ones, however long it is.
        begin = self._calls[self._next()][: 4 * number]
        return [entry[2] for entry in heapq.nsmallest(number, begin) if not entry[2].is_over]

    def forget(self, client: str) -> None:
        """One call of that client is over."""
        self.clients[client] -= 1
        if not self.clients[client]:
            del self.clients[client], self._calls[client]
            if not self.clients:
                self._order.clear()
        elif len(self._calls[client]) > 2 * self.clients[client] + 16:
            self._calls[client] = [entry for entry in self._calls[client] if not entry[2].is_over]
            heapq.heapify(self._calls[client])

    def least_deserving(self) -> W:
        greediest = max(self.clients, key=self.clients.__getitem__)
        return max(entry for entry in self._calls[greediest] if not entry[2].is_over)[2]

    def _next(self) -> str:
        """Counters only grow, so an entry of the heap is at worst too low: it is put back with what it is now."""
        counters = self._counters
        if self._era != counters.era or len(self._order) > 2 * len(self.clients) + 16:
            self._era = counters.era
            self._order = [(counters.of(client), client) for client in self.clients]
            heapq.heapify(self._order)
        while True:
            counted, client = self._order[0]
            if client not in self.clients:
                heapq.heappop(self._order)
            elif counted != (now := counters.of(client)):
                heapq.heapreplace(self._order, (now, client))
            else:
                return client
