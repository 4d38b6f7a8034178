"""The stage in which a draft guesses what the target says: what it is made of."""

from __future__ import annotations

from typing import TypeGuard

from backends.drafts.push import Pushable
from backends.drafts.rounds import Verifier
from backends.protocol import Backend
from gateway.assembly.site import Site
from gateway.assembly.speculation import draft_pool
from policies.schema import RoutePolicy
from policies.speculation.exact import ExactSpeculation, Target
from policies.speculation.settings import ExactPolicy


def exact_settings(route: RoutePolicy) -> ExactPolicy | None:
    """What a route says of it, if it has one."""
    return route.speculative if isinstance(route.speculative, ExactPolicy) else None


def draft_exactly(inner: Backend, settings: ExactPolicy, site: Site) -> Backend:
    """The stage around a route's pool."""
    leaves = site.parts.leaves
    names = {part.ref for part in site.route.backends}
    targets = {name: leaf for name in names if is_target(leaf := leaves[name])}
    return ExactSpeculation(inner, settings, draft_pool(site), targets, site.parts.clock)


def is_target(leaf: Backend) -> TypeGuard[Target]:
    """Whether guesses can be checked by a backend of that kind."""
    return isinstance(leaf, Pushable) and isinstance(leaf, Verifier)
