"""The stacks of a policy's routes, each made when its route is first asked: routes that nobody asks cost nothing.

`stages.py` says which stages there are and in which order they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backends.operations import Operation
from backends.protocol import Backend, Timeouts
from gateway.assembly.parts import Parts
from gateway.assembly.pools import build_pool
from gateway.assembly.site import Site
from gateway.assembly.stages import STAGES, routes_below, semantic_settings
from gateway.runtime import Stack
from policies.passthrough.rules import PassRules
from policies.schema import RoutePolicy
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.settings import CascadePolicy


class Stacks(Mapping[str, Stack]):
    """Stacks by the names of their routes. To look one up makes it, so `built` is for who only watches."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._routes = {route.name: route for route in parts.loaded.policy.routes}
        # Several tenants use the backends, or may any moment.
        policy = parts.loaded.policy
        self._is_shared = policy.has_several_tenants
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
        """Take over a stack of another policy, with its breakers and all, if the same would be built anew.

        Those that it asks come first. What balances by load, waits, or has a semantic cache, a cascade or a mirror is
        always built anew.
        """
        if self._is_as_built(stack):
            self._built[stack.policy.name] = stack

    def _is_as_built(self, stack: Stack) -> bool:
        leaves, fleet = self._parts.leaves, self._parts.fleet
        route = self._routes.get(stack.policy.name)
        return (
            route is not None
            and route == stack.policy
            and semantic_settings(route) is None
            and not isinstance(route.speculative, CascadePolicy | AutoPolicy)
            and route.mirror is None
            and not (fleet is not None and fleet.routing(route.name) is not None)
            and not stack.pool.has_routing
            and all(leaves.get(each.name) is each for each in stack.leaves)
            and stack.pool.price_sources == tuple(map(self._parts.prices.source, route.backends))
            and stack.passes.is_shared is self._is_shared
            and all(self._built.get(below.policy.name) is below for below in stack.below)
        )

    def _build(self, name: str) -> Stack:
        # Those below come first. They may ask others in turn, through more of them than Python has room for calls.
        waiting = [name]
        while waiting:
            route = self._routes[waiting[-1]]
            missing = [below for below in routes_below(route) if below not in self._built]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if route.name not in self._built:
                self._built[route.name] = self._stack(route)
        return self._built[name]

    def _stack(self, route: RoutePolicy) -> Stack:
        site = Site(route, self._parts, self._built)
        pool = build_pool(route, self._parts)
        stages: list[Backend] = [pool]
        for row in reversed(STAGES):
            settings = row.settings(route)
            if settings is not None:
                stages.append(row.build(stages[-1], settings, site))
        operations = stages[-1].capabilities.operations
        return Stack(
            policy=route,
            backend=stages[-1],
            stages=tuple(reversed(stages)),
            timeouts=Timeouts(
                connect_s=route.timeouts.connect,
                first_token_s=route.timeouts.first_token or Timeouts().first_token_s,
                stream_idle_s=route.timeouts.stream_idle,
                total_s=route.timeouts.total,
            ),
            leaves=tuple({part.ref: self._parts.leaves[part.ref] for part in route.everybody}.values()),
            pool=pool,
            asked_prices=self._parts.prices.asked(route),
            below=tuple(self._built[name] for name in routes_below(route)),
            operations=operations,
            passes_on=Operation.PASSTHROUGH in operations,
            slo=route.slo.limits if route.slo is not None else None,
            passes=PassRules(route.passthrough, is_shared=self._is_shared),
        )
