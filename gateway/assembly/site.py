"""Where a stage is built: its route, and what it may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.assembly.parts import Parts
from gateway.runtime import Stack
from policies.cache.settings import CachePolicy
from policies.pool.fallback import FallbackTarget
from policies.schema import RoutePolicy
from policies.speculation.settings import ExactPolicy, PredictedPolicy


@dataclass(frozen=True, slots=True)
class Site:
    """Where a stage is built: its route, what all stacks share, and the stacks of the routes that it asks."""

    route: RoutePolicy
    parts: Parts
    stacks: Mapping[str, Stack]

    def target(self, name: str) -> FallbackTarget:
        """Another route's stack, as a call is sent there."""
        stack = self.stacks[name]
        return FallbackTarget(name, stack.backend, stack.timeouts)

    def cache(self, settings: CachePolicy) -> CachePolicy:
        """What the route says of its caches, with a name for answers that need not be the target's.

        They are found only by who would have got them too: a route that turns its draft off, or asks more of it, has no
        use for them.
        """
        speculative = self.route.speculative
        if speculative is None or isinstance(speculative, ExactPolicy | PredictedPolicy):
            return settings
        return settings.model_copy(update={"epoch": f"{settings.epoch} {speculative.model_dump_json()}"})
