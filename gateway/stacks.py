"""The stacks of a policy's routes, each made when its route is first asked: routes that nobody asks cost nothing.

Part of assembly, which says what they are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING

from backends.clock import Clock
from backends.protocol import Backend, Operation, Timeouts
from gateway.runtime import Stack
from policies.admission.admission import Admission
from policies.batching.embeddings import EmbeddingBatches
from policies.cache.exact import ExactCache
from policies.cache.pacing import Pacing
from policies.cache.store import Store
from policies.passthrough.rules import PassRules
from policies.policy_file.load import LoadedPolicy
from policies.pool.attempts.hedge import Hedging
from policies.pool.attempts.retry import RetryBudget
from policies.pool.fallback import Fallback, Target
from policies.pool.load.fleet import Fleet
from policies.pool.pool import Member, Pool
from policies.resume.stage import Resuming
from policies.schema import FallbackOn, RoutePolicy

if TYPE_CHECKING:
    from policies.cache.semantic.build import Semantics

_OVERLOAD: tuple[FallbackOn, ...] = ("overload",)


class Stacks(Mapping[str, Stack]):
    """Stacks by the names of their routes. To look one up makes it, so `built` is for who only watches."""

    def __init__(
        self,
        loaded: LoadedPolicy,
        leaves: Mapping[str, Backend],
        newcomers: Collection[str],
        fleet: Fleet | None,
        admission: Admission | None,
        semantics: Semantics | None,
        *,
        clock: Clock,
        store: Store,
        seed: int | None,
    ) -> None:
        """`newcomers`: leaves that start slowly."""
        self._routes = {route.name: route for route in loaded.policy.routes}
        self._leaves = leaves
        self._newcomers = newcomers
        self._fleet = fleet
        self._admission = admission
        self._semantics = semantics
        self._clock = clock
        self._store = store
        self._seed = seed
        self._is_shared = len({key.tenant for key in loaded.policy.keys}) > 1
        self._built: dict[str, Stack] = {}

    def __getitem__(self, name: str) -> Stack:
        stack = self._built.get(name)
        return stack if stack is not None else self._build(name)

    def __contains__(self, name: object) -> bool:
        return name in self._routes

    def __iter__(self) -> Iterator[str]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def built(self) -> tuple[Stack, ...]:
        """Those that there are, a stack behind those that it asks."""
        return tuple(self._built.values())

    def if_built(self, name: str) -> Stack | None:
        """That of a route, if it has been asked."""
        return self._built.get(name)

    def keep(self, stack: Stack) -> None:
        """Take over a stack of another policy, with its breakers and all, if the same would be made anew.

        Those that it asks come first. What balances by load, waits, or has a semantic cache is always made anew.
        """
        route = self._routes.get(stack.policy.name)
        if route is None or route != stack.policy or has_semantic(route):
            return
        if self._fleet is not None and self._fleet.routing(route.name) is not None:
            return
        if stack.pool.has_routing or any(self._leaves.get(each.name) is not each for each in stack.leaves):
            return
        if stack.passes.is_shared is not self._is_shared:
            return
        if all(self._built.get(below.policy.name) is below for below in stack.below):
            self._built[route.name] = stack

    def _build(self, name: str) -> Stack:
        waiting = [name]
        while waiting:
            route = self._routes[waiting[-1]]
            missing = [below for below in _routes_below(route) if below not in self._built]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if route.name not in self._built:
                self._built[route.name] = self._stack(route)
        return self._built[name]

    def _stack(self, route: RoutePolicy) -> Stack:
        clock, semantics, stacks = self._clock, self._semantics, self._built
        pool = self._pool(route)
        timeouts = Timeouts(
            connect_s=route.timeouts.connect,
            first_token_s=route.timeouts.first_token or Timeouts().first_token_s,
            stream_idle_s=route.timeouts.stream_idle,
            total_s=route.timeouts.total,
        )
        backend: Backend = pool
        if route.resume is not None:
            continues = {part.ref: self._leaves[part.ref].capabilities.continues for part in route.backends}
            budget = RetryBudget(route.retry.budget_percent, clock)
            backend = Resuming(pool, route.resume, continues, clock, budget)
        batches = None
        if route.batching is not None:
            num_backends = max(1, sum(part.weight > 0 for part in route.backends))
            batches = backend = EmbeddingBatches(backend, route.batching, clock, max_in_flight=num_backends)
        if semantics is not None and has_semantic(route):
            judges = [(stacks[name].backend, stacks[name].timeouts) for name in _judges(route)]
            backend = semantics.stage(route, backend, self._leaves, judges[0] if judges else None)
        if route.cache is not None and route.cache.exact.enabled:
            backend = ExactCache(backend, route.cache, self._store, clock, route=route.name)
        if route.cache is not None and route.cache.pacing != "off":
            backend = Pacing(backend, clock, Random())
        if route.admission is not None and route.admission.degrade_to is not None:
            degraded = stacks[route.admission.degrade_to]
            target = Target(route.admission.degrade_to, degraded.backend, degraded.timeouts)
            backend = Fallback(backend, [target], _OVERLOAD, clock)
        if route.fallbacks is not None:
            targets = [Target(name, stacks[name].backend, stacks[name].timeouts) for name in route.fallbacks.routes]
            backend = Fallback(backend, targets, route.fallbacks.on, clock)
        operations = backend.capabilities.operations
        return Stack(
            policy=route,
            backend=backend,
            timeouts=timeouts,
            leaves=tuple({part.ref: self._leaves[part.ref] for part in route.backends}.values()),
            pool=pool,
            below=tuple(stacks[name] for name in _routes_below(route)),
            batches=batches,
            operations=operations,
            passes_on=Operation.PASSTHROUGH in operations,
            slo=route.slo.limits if route.slo is not None else None,
            passes=PassRules(route.passthrough, is_shared=self._is_shared),
        )

    def _pool(self, route: RoutePolicy) -> Pool:
        fleet, admission, clock = self._fleet, self._admission, self._clock
        has_weights = route.balance != "round_robin"
        gate = admission.gates.get(route.name) if admission is not None else None
        hedging = None
        if route.hedge is not None:
            hedging = Hedging(route.hedge, clock, gate.is_calm) if gate is not None else Hedging(route.hedge, clock)
        return Pool(
            route.name,
            [
                Member(
                    self._leaves[part.ref],
                    part.model,
                    part.weight if has_weights else min(part.weight, 1),
                    part.priority,
                    is_new=part.ref in self._newcomers,
                )
                for part in route.backends
            ],
            retry=route.retry,
            breaker=route.circuit_breaker,
            clock=clock,
            random=Random(self._seed),
            routing=fleet.routing(route.name) if fleet is not None else None,
            gate=gate,
            hedging=hedging,
            provider_cache=route.routing.provider_cache,
            falls_back_on=route.fallbacks.on if route.fallbacks is not None else (),
            falls_back_to=route.fallbacks.routes if route.fallbacks is not None else (),
            limits_first_token=route.timeouts.first_token is None,
        )


def has_semantic(route: RoutePolicy) -> bool:
    """Whether a route asks the semantic cache."""
    return route.cache is not None and route.cache.semantic is not None and route.cache.semantic.is_on


def _routes_below(route: RoutePolicy) -> tuple[str, ...]:
    """Routes whose stacks this one asks."""
    fallbacks = route.fallbacks.routes if route.fallbacks is not None else ()
    degraded = (route.admission.degrade_to,) if route.admission is not None and route.admission.degrade_to else ()
    return (*fallbacks, *degraded, *_judges(route))


def _judges(route: RoutePolicy) -> tuple[str, ...]:
    semantic = route.cache.semantic if route.cache is not None else None
    return (semantic.judge.route,) if semantic is not None and semantic.judge is not None else ()
