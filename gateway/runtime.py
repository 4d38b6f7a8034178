"""Everything that one revision of the policy file means, built once and never changed: a reload swaps it whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backends.protocol import Backend, Operation, Timeouts
from gateway.auth import Keyring
from policies.load import LoadedPolicy
from policies.match import RouteMatcher
from policies.schema import RoutePolicy


@dataclass(frozen=True, slots=True)
class Stack:
    """One route: its policy and the backends stacked for it, outermost first."""

    policy: RoutePolicy
    backend: Backend
    timeouts: Timeouts
    lists_models_from: tuple[Backend, ...]
    """Its leaves: who to ask which models there are."""
    breaker_states: Callable[[], Mapping[str, str]]
    operations: frozenset[Operation]


@dataclass(slots=True, eq=False)
class Runtime:
    """A policy in force. Calls hold it while they run, so that a reload lets them finish on what they began with."""

    loaded: LoadedPolicy
    keyring: Keyring
    matcher: RouteMatcher
    stacks: Mapping[str, Stack]
    leaves: Mapping[str, Backend]
    model_labels: frozenset[str]
    """Models that the policy names: the only ones that become a metric label."""
    in_flight: int = 0

    @property
    def revision(self) -> str:
        """Short hash of the policy file."""
        return self.loaded.revision

    def release(self) -> None:
        """One call less."""
        self.in_flight -= 1
