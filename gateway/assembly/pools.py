"""The innermost stage of a route's stack: the pool of its backends."""

from __future__ import annotations

from random import Random

from gateway.assembly.parts import Parts
from policies.pool.attempts.hedge import Hedging
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.schema import RoutePolicy


def build_pool(route: RoutePolicy, parts: Parts) -> Pool:
    """The pool of a route's backends, with the gate in front of them where the route has admission."""
    fleet, admission, clock = parts.fleet, parts.admission, parts.clock
    has_weights = route.balance != "round_robin"
    gate = admission.gates.get(route.name) if admission is not None else None
    hedging = None
    if route.hedge is not None:
        hedging = Hedging(route.hedge, clock, gate.is_calm) if gate is not None else Hedging(route.hedge, clock)
    return Pool(
        route.name,
        [
            Member(
                parts.leaves[part.ref],
                part.model,
                part.weight if has_weights else min(part.weight, 1),
                part.priority,
                is_new=part.ref in parts.newcomers,
                prices=parts.prices.source(part),
            )
            for part in route.backends
        ],
        retry=route.retry,
        breaker=route.circuit_breaker,
        clock=clock,
        random=Random(parts.seed),
        routing=fleet.routing(route.name) if fleet is not None else None,
        gate=gate,
        hedging=hedging,
        provider_cache=route.routing.provider_cache,
        falls_back_on=route.fallbacks.on if route.fallbacks is not None else (),
        falls_back_to=route.fallbacks.routes if route.fallbacks is not None else (),
        limits_first_token=route.timeouts.first_token is None,
    )
