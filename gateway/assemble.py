"""The one place that constructs: from a loaded policy to stacks of backends, in the order in which calls meet them.

    fallback -> exact cache -> pool (balance, retry, breaker) -> leaf

A stage that a route does not ask for is not in its stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from random import Random

from backends.clock import Clock
from backends.config import Config
from backends.protocol import Backend, Timeouts
from backends.registry import Registry
from gateway.auth import Keyring
from gateway.runtime import Runtime, Stack
from policies.cache.exact import ExactCache
from policies.cache.store import Store
from policies.cache.store_memory import MemoryEntryStore
from policies.load import LoadedPolicy
from policies.match import RouteMatcher
from policies.pool.fallback import Fallback, Target
from policies.pool.pool import Member, Pool
from policies.schema import RoutePolicy, StoresPolicy


def build_store(policy: StoresPolicy, clock: Clock) -> Store:
    """Where cached answers live.

    Raises: ConfigurationError if Redis is asked for without the extra.
    """
    if policy.redis is not None:
        from policies.cache.store_redis import build_redis_store

        return build_redis_store(policy.redis, clock)
    return MemoryEntryStore(policy.memory.max_size, clock)


def assemble(
    loaded: LoadedPolicy, clock: Clock, store: Store, registry: Registry, previous: Runtime | None = None
) -> Runtime:
    """A runtime for that policy. A leaf whose settings are those of `previous` is taken over, connections and all."""
    leaves = {
        name: _leaf(name, kind, settings, clock, registry, previous)
        for name, (kind, settings) in loaded.backends.items()
    }
    routes = {route.name: route for route in loaded.policy.routes}
    order = TopologicalSorter({name: _fallback_routes(route) for name, route in routes.items()}).static_order()
    stacks: dict[str, Stack] = {}
    for name in order:
        stacks[name] = _stack(routes[name], leaves, stacks, clock, store)
    return Runtime(
        loaded=loaded,
        keyring=Keyring(loaded.policy.keys),
        matcher=RouteMatcher(loaded.policy.routes),
        stacks=stacks,
        leaves=leaves,
        model_labels=_model_labels(loaded),
    )


def _leaf(
    name: str, kind: str, settings: Config, clock: Clock, registry: Registry, previous: Runtime | None
) -> Backend:
    if previous is not None and previous.loaded.backends.get(name) == (kind, settings):
        return previous.leaves[name]
    return registry.kind(kind).build(name, settings, clock)


def _stack(
    route: RoutePolicy, leaves: Mapping[str, Backend], stacks: Mapping[str, Stack], clock: Clock, store: Store
) -> Stack:
    timeouts = Timeouts(
        connect_s=route.timeouts.connect,
        first_token_s=route.timeouts.first_token,
        stream_idle_s=route.timeouts.stream_idle,
        total_s=route.timeouts.total,
    )
    pool = Pool(
        route.name,
        [Member(leaves[part.ref], part.model, part.weight, part.priority) for part in route.backends],
        retry=route.retry,
        breaker=route.circuit_breaker,
        clock=clock,
        random=Random(),
    )
    backend: Backend = pool
    if route.cache is not None and route.cache.exact.enabled:
        backend = ExactCache(backend, route.cache, store, clock, route=route.name)
    if route.fallbacks is not None:
        targets = [Target(name, stacks[name].backend, stacks[name].timeouts) for name in route.fallbacks.routes]
        backend = Fallback(backend, targets, route.fallbacks.on, clock)
    return Stack(
        policy=route,
        backend=backend,
        timeouts=timeouts,
        lists_models_from=tuple({part.ref: leaves[part.ref] for part in route.backends}.values()),
        breaker_states=pool.breaker_states,
        operations=backend.capabilities.operations,
    )


def _fallback_routes(route: RoutePolicy) -> tuple[str, ...]:
    return route.fallbacks.routes if route.fallbacks is not None else ()


def _model_labels(loaded: LoadedPolicy) -> frozenset[str]:
    return frozenset(
        name for route in loaded.policy.routes for name in route.match.models if not any(sign in name for sign in "*?[")
    )
