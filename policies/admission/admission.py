"""The gates of all routes of a policy. Routes may share backends, so the next call is chosen among all their queues."""

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
from policies.pool.load.fleet import Fleet, beyond_admission
from policies.pool.load.replica import Replica
from policies.schema import RoutePolicy

_RECHECK_EVERY_S = 0.1
"""Some changes that make room are not signalled, such as a breaker that closes: while calls wait, look so often."""


class Admission:
    """Sends queued calls whenever the load of a backend falls, and refuses those that cannot be in time any more."""

    def __init__(self, routes: Iterable[RoutePolicy], fleet: Fleet, clock: Clock) -> None:
        self._clock = clock
        self._counters: list[tuple[FairnessPolicy, Counters]] = []
        self._watchers: dict[Replica, Callable[[], None]] = {}
        self._gates: dict[str, Gate] = {}
        self._by_deadline: list[tuple[float, int, Gate, QueuedCall]] = []
        self._numbers = itertools.count()
        self._is_watching = False
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0
        for route in routes:
            routing = fleet.routing(route.name)
            if route.admission is not None and route.slo is not None and routing is not None:
                name = beyond_admission(route)
                beyond = fleet.routing(name) if name is not None else None
                self._watchers.update((each, partial(self._on_freed, each)) for each in routing.replicas)
                self._gates[route.name] = Gate(
                    route.name,
                    route.admission,
                    route.slo.limits,
                    fleet.index,
                    self._counters_of(route.admission.fairness),
                    on_join=self._on_join,
                    clock=clock,
                    beyond=() if beyond is None else beyond.replicas,
                )

    @property
    def gates(self) -> Mapping[str, Gate]:
        """The gates by the name of their route; routes without admission have none."""
        return self._gates

    async def open(self) -> None:
        """Does nothing: backends are watched only while calls wait for them."""

    async def aclose(self) -> None:
        """Stop watching. A policy is closed after its calls have ended, so no call waits. Safe to call twice."""
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Both hold bound methods of this object: the reference cycles would outlive the policy.
        self._watchers.clear()
        self._gates = {}

    def dispatch(self) -> None:
        """Send all calls that can go now, in order; a queue whose first call cannot go waits as a whole."""
        self._send_from(self._nonempty_gates(), self._clock.now())

    def _on_freed(self, replica: Replica) -> None:
        """The same after the load of one backend has fallen, while the others are as full as before."""
        now = self._clock.now()
        self._send_from([gate for gate in self._nonempty_gates() if gate.is_freed(replica, now)], now)

    def _nonempty_gates(self) -> list[Gate]:
        """The gates at which calls wait; without any, the backends are no longer watched."""
        gates = [gate for gate in self._gates.values() if gate.queue]
        if not gates:
            self._stop_watching()
        return gates

    def _send_from(self, gates: list[Gate], now: float) -> None:
        while gates:
            gate = gates[0] if len(gates) == 1 else min(gates, key=lambda each: each.queue.rank())
            if not gate.send_next(now) or not gate.queue:
                gates.remove(gate)

    def _on_join(self, gate: Gate, call: QueuedCall) -> None:
        heapq.heappush(self._by_deadline, (call.send_by, next(self._numbers), gate, call))
        self._watch()
        self.dispatch()
        if not call.is_over:
            self._set_timer()

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

    def _on_timer(self) -> None:
        """Refuse the calls whose time is up, and send those that can go."""
        self._timer = None
        now = self._clock.now()
        while self._by_deadline and (self._by_deadline[0][3].is_over or self._by_deadline[0][0] <= now):
            _, _, gate, call = heapq.heappop(self._by_deadline)
            if call.has_disconnected and not call.is_over:
                gate.queue.remove(call)
            elif not call.is_over:
                gate.dequeue(call, gate.refusal(call, gate.deadline_reason, now), now)
        self.dispatch()
        self._set_timer()

    def _set_timer(self) -> None:
        waiting = sum(len(gate.queue) for gate in self._gates.values())
        if len(self._by_deadline) > 2 * waiting + 16:
            self._by_deadline = [entry for entry in self._by_deadline if not entry[3].is_over]
            heapq.heapify(self._by_deadline)
        if not waiting:
            return
        now = self._clock.now()
        wake_at = min(now + _RECHECK_EVERY_S, self._by_deadline[0][0])
        if self._timer is not None:
            if self._timer_at <= wake_at:
                return
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = get_running_loop().call_later(max(0.0, wake_at - now), self._on_timer)

    def _counters_of(self, fairness: FairnessPolicy) -> Counters:
        """Routes with the same fairness settings share their counters."""
        for known, counters in self._counters:
            if known == fairness:
                return counters
        counters = Counters(fairness.half_life, fairness.weights)
        self._counters.append((fairness, counters))
        return counters
