"""All the gates of a policy: routes may share backends, so whoever is next is next among all their queues."""

from __future__ import annotations

import heapq
import itertools
from asyncio import TimerHandle, get_running_loop
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from backends.clock import Clock
from policies.admission.fairness import Counters
from policies.admission.gate import Gate
from policies.admission.queued_call import QueuedCall
from policies.admission.settings import FairnessPolicy
from policies.pool.load.fleet import Fleet
from policies.pool.load.replica import Replica
from policies.schema import RoutePolicy

_LOOK_EVERY_S = 0.1
"""Room can come of itself: a breaker closes, a pause is over. Looked for only while somebody waits."""


class Admission:
    """Calls up those who wait whenever a backend has come to have less to do, and turns away those whose time is up."""

    def __init__(self, routes: Iterable[RoutePolicy], fleet: Fleet, clock: Clock) -> None:
        self._clock = clock
        self._counters: list[tuple[FairnessPolicy, Counters]] = []
        self._watchers: dict[Replica, Callable[[], None]] = {}
        self._gates: dict[str, Gate] = {}
        self._leaving: list[tuple[float, int, Gate, QueuedCall]] = []
        self._numbers = itertools.count()
        self._is_watching = False
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0
        for route in routes:
            routing = fleet.routing(route.name)
            if route.admission is not None and route.slo is not None and routing is not None:
                self._watchers.update((each, partial(self._freed, each)) for each in routing.replicas)
                self._gates[route.name] = Gate(
                    route.name,
                    route.admission,
                    route.slo.limits,
                    fleet.index,
                    self._counters_of(route.admission.fairness),
                    on_join=self._joined,
                    clock=clock,
                )

    @property
    def gates(self) -> Mapping[str, Gate]:
        """By route; those without admission have none."""
        return self._gates

    async def open(self) -> None:
        """Nothing: backends are watched while somebody waits for them."""

    async def aclose(self) -> None:
        """Stop watching. Nobody waits any more: whoever closes a policy has seen its calls end. Safe to call twice."""
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # They know this by its methods, and cycles would outlive the policy.
        self._watchers.clear()
        self._gates = {}

    def dispatch(self) -> None:
        """Let in all who can go now, in their order; a queue whose first cannot go waits as a whole."""
        self._let_in(self._busy(), self._clock.now())

    def _freed(self, replica: Replica) -> None:
        """The same once a backend has come to have less to do, while the others are as full as they were."""
        now = self._clock.now()
        self._let_in([gate for gate in self._busy() if gate.is_freed(replica, now)], now)

    def _busy(self) -> list[Gate]:
        """The gates where somebody waits; backends are watched as long as there are any."""
        gates = [gate for gate in self._gates.values() if gate.queue]
        if not gates:
            self._stop_watching()
        return gates

    def _let_in(self, gates: list[Gate], now: float) -> None:
        while gates:
            gate = gates[0] if len(gates) == 1 else min(gates, key=lambda each: each.queue.rank())
            if not gate.call_up(now) or not gate.queue:
                gates.remove(gate)

    def _joined(self, gate: Gate, caller: QueuedCall) -> None:
        heapq.heappush(self._leaving, (caller.leave_at, next(self._numbers), gate, caller))
        self._watch()
        self.dispatch()
        if not caller.is_over:
            self._look_again()

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            for replica, watcher in self._watchers.items():
                replica.in_flight.watchers = (*replica.in_flight.watchers, watcher)

    def _stop_watching(self) -> None:
        if self._is_watching:
            self._is_watching = False
            for replica, watcher in self._watchers.items():
                load = replica.in_flight
                load.watchers = tuple(each for each in load.watchers if each is not watcher)

    def _look(self) -> None:
        """The timer: turn away whose time is up, call up who can go."""
        self._timer = None
        now = self._clock.now()
        while self._leaving and (self._leaving[0][3].is_over or self._leaving[0][0] <= now):
            _, _, gate, caller = heapq.heappop(self._leaving)
            if caller.has_left and not caller.is_over:
                gate.queue.remove(caller)
            elif not caller.is_over:
                gate.leave(caller, gate.refusal(caller, gate.why_it_leaves, now), now)
        self.dispatch()
        self._look_again()

    def _look_again(self) -> None:
        waiting = sum(len(gate.queue) for gate in self._gates.values())
        if len(self._leaving) > 2 * waiting + 16:
            self._leaving = [entry for entry in self._leaving if not entry[3].is_over]
            heapq.heapify(self._leaving)
        if not waiting:
            return
        now = self._clock.now()
        look_at = min(now + _LOOK_EVERY_S, self._leaving[0][0])
        if self._timer is not None:
            if self._timer_at <= look_at:
                return
            self._timer.cancel()
        self._timer_at = look_at
        self._timer = get_running_loop().call_later(max(0.0, look_at - now), self._look)

    def _counters_of(self, fairness: FairnessPolicy) -> Counters:
        """Routes that share in the same way share one count of who has had what."""
        for known, counters in self._counters:
            if known == fairness:
                return counters
        counters = Counters(fairness.half_life, fairness.weights)
        self._counters.append((fairness, counters))
        return counters
