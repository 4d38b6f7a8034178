"""The queue of one route, ordered by priority, then by the least served client, then by the earliest deadline.

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
    """A call in the queue. Times are monotonic seconds.

    Its first token is due by `deadline`, so the call has to be sent by `send_by`. `is_over` is set once it has been
    sent or refused, or its client has disconnected.
    """

    __slots__ = ("arrived_at", "client", "deadline", "demand", "is_over", "priority", "send_by", "slo")

    def __init__(self, demand: Demand, slo: Slo, *, client: str, priority: Priority, arrived_at: float) -> None:
        self.demand = demand
        self.slo = slo
        self.client = client
        self.priority = priority
        self.arrived_at = arrived_at
        self.deadline = arrived_at + slo.first_token_limit_s(demand.tokens)
        self.send_by = self.deadline
        self.is_over = False


W = TypeVar("W", bound=Waiting)


class AdmissionQueue(Generic[W]):
    """The calls that wait at one route. `len()` is their number, `tokens` the sum of their prompts' tokens."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._classes: list[_PriorityClass[W]] = [_PriorityClass(counters) for _ in Priority]
        self.tokens = 0
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def add(self, waiting: W) -> None:
        """Queue a call."""
        floor = min((each.least() for each in self._classes if each.clients), default=None)
        if floor is not None and all(waiting.client not in each.clients for each in self._classes):
            self._counters.lift(waiting.client, floor)
        self._classes[waiting.priority].add(waiting)
        self._number += 1
        self.tokens += waiting.demand.tokens

    def head(self) -> W:
        """The call that is served next; the queue must not be empty."""
        return next(each for each in self._classes if each.clients).head()

    def next_few(self, number: int) -> list[W]:
        """At most `number` calls: the head, and about the next ones of the same client."""
        return next(each for each in self._classes if each.clients).next_few(number)

    def rank(self) -> tuple[int, float, float]:
        """The sort key of the head among the heads of other routes' queues: the smallest is served first."""
        head = self.head()
        return head.priority, self._counters.of(head.client), head.deadline

    def remove(self, waiting: W) -> None:
        """Take a call out, wherever it stands in the queue; once for each call that was added."""
        waiting.is_over = True
        self._classes[waiting.priority].forget(waiting.client)
        self._number -= 1
        self.tokens -= waiting.demand.tokens

    def num_beside(self, waiting: Waiting) -> int:
        """How many calls of the same client and priority are queued, including this one if it is."""
        return self._classes[waiting.priority].clients.get(waiting.client, 0)

    def least_deserving(self) -> W:
        """The call to give up when the queue is full.

        Of the lowest priority, the client with the most queued calls; of these, the call with the latest deadline.
        """
        return next(each for each in reversed(self._classes) if each.clients).least_deserving()


class _PriorityClass(Generic[W]):
    """The calls of one priority: a heap of calls for each client, and a heap of the clients.

    Calls that are over stay in their heap until they reach its top, or until the heap is mostly made of them.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.clients: dict[str, int] = {}
        """How many calls of each client wait."""
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
        """The counter of the client that is served next."""
        return self._counters.of(self._next())

    def head(self) -> W:
        calls = self._calls[self._next()]
        while calls[0][2].is_over:
            heapq.heappop(calls)
        return calls[0][2]

    def next_few(self, number: int) -> list[W]:
        self.head()
        # A heap is not sorted, but its smallest entries are found near its front, however long it is.
        begin = self._calls[self._next()][: 4 * number]
        return [entry[2] for entry in heapq.nsmallest(number, begin) if not entry[2].is_over]

    def forget(self, client: str) -> None:
        """Count one call of that client less."""
        self.clients[client] -= 1
        if not self.clients[client]:
            del self.clients[client], self._calls[client]
            if not self.clients:
                self._order.clear()
        elif len(self._calls[client]) > 2 * self.clients[client] + 16:
            self._calls[client] = [entry for entry in self._calls[client] if not entry[2].is_over]
            heapq.heapify(self._calls[client])

    def least_deserving(self) -> W:
        most_queued = max(self.clients, key=self.clients.__getitem__)
        return max(entry for entry in self._calls[most_queued] if not entry[2].is_over)[2]

    def _next(self) -> str:
        """The client that is served next.

        Within an era counters only grow, so an outdated entry of the heap stands too far in front: when it comes to
        the top, it is put back with its present counter.
        """
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
