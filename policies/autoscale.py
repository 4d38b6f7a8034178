"""What an autoscaler wants to know of each route: looked at every few seconds while a policy is in force."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

import msgspec

from backends.clock import Clock
from policies.admission.admission import Admission
from policies.admission.gate import Gate
from policies.admission.settings import SloPolicy
from policies.loop import Loop
from policies.pool.load.fleet import Fleet
from policies.pool.load.replica import Replica
from policies.pool.load.scaling import PoolSample, Scaling
from policies.schema import RoutePolicy

LOOK_EVERY_S = 5.0


class ScalingSignals(msgspec.Struct, frozen=True):
    """Of one route. `prefill_load` and `memory_load` are in replicas, `shed_share` 0..1 of the last seconds' calls."""

    replicas: int
    desired_replicas: int
    time_to_breach_s: float
    prefill_load: float
    memory_load: float
    shed_share: float


class Autoscale:
    """Samples the routes whose backends are watched."""

    def __init__(self, routes: Iterable[RoutePolicy], fleet: Fleet, admission: Admission, clock: Clock) -> None:
        self._clock = clock
        self._pools: dict[str, _Pool] = {}
        for route in routes:
            routing = fleet.routing(route.name)
            if routing is not None:
                limit_s = (route.slo or SloPolicy()).ttft
                self._pools[route.name] = _Pool(routing.replicas, admission.gates.get(route.name), limit_s)
        self.loop = Loop("autoscale", clock)
        """What looks."""

    async def open(self) -> None:
        """Begin to look."""
        self.loop.start(self._run)

    async def aclose(self) -> None:
        """Stop. Safe to call twice."""
        await self.loop.aclose()

    @property
    def routes(self) -> Set[str]:
        """Those that are sampled, by name."""
        return self._pools.keys()

    def signals(self, route: str) -> ScalingSignals:
        """Of one of them, as of the last look."""
        return self._pools[route].signals()

    async def _run(self) -> None:
        while True:
            now = self._clock.now()
            for pool in self._pools.values():
                pool.look(now)
            await self._clock.sleep(LOOK_EVERY_S)


class _Pool:
    """One route's replicas and gate, and what they had counted when they were looked at last.

    A replica of which too little is known to predict anything counts as idle.
    """

    def __init__(self, replicas: tuple[Replica, ...], gate: Gate | None, limit_s: float) -> None:
        self._replicas = replicas
        self._gate = gate
        self._scaling = Scaling(len(replicas), limit_s)
        self._last = PoolSample(0.0, 0.0, 0.0, 0.0, 0.0)
        self._before: _Seen | None = None

    def look(self, now: float) -> None:
        """Take a sample. What was turned away was asked for too."""
        replicas = self._replicas
        known = [each for each in replicas if each.model.doubt is None]
        seconds_per_token = sum(each.model.seconds_per_token for each in known) / len(known) if known else 0.0
        gate = self._gate.statistics() if self._gate is not None else None
        shed_tokens, shed, entered, waiting = (
            (gate.shed_tokens, sum(gate.shed.values()), gate.entered, gate.waiting_tokens) if gate else (0, 0, 0, 0)
        )
        seen = _Seen(now, sum(each.work_s for each in replicas), shed_tokens, shed, entered)
        before, self._before = self._before, seen
        if before is None or now <= before.at:
            return
        ahead_s = sum(each.in_flight.waiting_tokens * each.model.seconds_per_token for each in known)
        memory = sum(
            each.in_flight.held_tokens / each.cache_tokens for each in replicas if each.cache_tokens and each in known
        )
        work_s = seen.work_s - before.work_s + (shed_tokens - before.shed_tokens) * seconds_per_token
        self._last = PoolSample(
            now,
            work_s / (now - before.at),
            memory,
            (shed - before.shed) / (entered - before.entered) if entered > before.entered else 0.0,
            (ahead_s + waiting * seconds_per_token) / len(replicas),
        )
        self._scaling.add(self._last)

    def signals(self) -> ScalingSignals:
        """As of the last look."""
        scaling, last = self._scaling, self._last
        return ScalingSignals(
            replicas=len(self._replicas),
            desired_replicas=scaling.desired_replicas(),
            time_to_breach_s=scaling.time_to_breach_s(),
            prefill_load=last.prefill,
            memory_load=last.memory,
            shed_share=last.shed,
        )


class _Seen(NamedTuple):
    """Totals since the start: seconds of prompts that went on, tokens and number of calls that were turned away, and
    calls that came to the gate."""

    at: float
    work_s: float
    shed_tokens: int
    shed: int
    entered: int
