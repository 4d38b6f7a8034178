"""Everything that one revision of the policy file means, built once and never changed: a reload swaps it whole."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from backends.errors import ConfigurationError
from backends.operations import Operation
from backends.protocol import Backend, Slo, Timeouts
from backends.registry import broken_backend
from gateway.http.auth import Keyring
from policies.limits.plan import UsageRules
from policies.matching.route_matcher import RouteMatcher
from policies.passthrough.rules import PassRules
from policies.policy_file.load import LoadedPolicy
from policies.schema import RoutePolicy

if TYPE_CHECKING:
    from policies.admission.admission import Admission
    from policies.autoscale import Autoscale
    from policies.cache.semantic.admin import Administration
    from policies.cache.semantic.build import Semantics
    from policies.failures import Failures
    from policies.pool.health.prober import Prober
    from policies.pool.load.fleet import Fleet
    from policies.pool.pool import Pool
    from policies.pool.prompts.kv_feed import KvFeed
    from policies.prices.listed import PriceList
    from policies.prices.source import PriceSource

_logger = logging.getLogger(__name__)
_Stage = TypeVar("_Stage")


class RouteStacks(Protocol):
    """The stacks of a policy's routes, which come to be when they are asked for."""

    def __getitem__(self, name: str) -> Stack:
        """That of a route. Raises: KeyError."""

    def get(self, name: str) -> Stack | None:
        """That of a route, if there is such a route."""

    def built(self) -> tuple[Stack, ...]:
        """Those that there are by now, a stack behind those that it asks."""

    def if_built(self, name: str) -> Stack | None:
        """That of a route, if it has been asked for."""


class Resource(Protocol):
    """Something that stacks share, opened before and closed after them."""

    async def open(self) -> None:
        """Acquire what it needs. Raises: ConfigurationError."""

    async def aclose(self) -> None:
        """Release everything. Safe to call twice."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One route: its policy and the backends stacked for it, outermost first."""

    policy: RoutePolicy
    backend: Backend
    """The outermost stage, which takes the calls."""
    stages: tuple[Backend, ...]
    """All of them in the order in which a call meets them; the last is the pool."""
    timeouts: Timeouts
    leaves: tuple[Backend, ...]
    """Who answers in the end."""
    pool: Pool
    """The innermost stage, which chooses among the leaves."""
    below: tuple[Stack, ...]
    """Those of other routes that it asks."""
    operations: frozenset[Operation]
    passes_on: bool
    """Whether one of them is that of calls that only pass through."""
    passes: PassRules
    """Which calls go on without being understood here."""
    asked_prices: PriceSource
    """What models cost by the list where this route is asked for them: what its savings are reckoned from."""
    slo: Slo | None = None

    def stage(self, kind: type[_Stage]) -> _Stage | None:
        """Its stage of that kind, if it has one."""
        for stage in self.stages:
            if isinstance(stage, kind):
                return stage
        return None


@dataclass(slots=True, eq=False)
class Runtime:
    """A policy in force. Calls hold it while they run, so that a reload lets them finish on what they began with."""

    loaded: LoadedPolicy
    keyring: Keyring
    matcher: RouteMatcher
    stacks: RouteStacks
    leaves: Mapping[str, Backend]
    model_labels: frozenset[str]
    """Models that the policy names: the only ones that become a metric label."""
    rules: UsageRules
    """Its limits and budgets."""
    listed_prices: PriceList | None = None
    """Prices of providers' lists, where the policy wants them."""
    resources: tuple[Resource, ...] = ()
    semantic: Administration | None = None
    """What operators do with the semantic cache, where a route has one."""
    semantics: Semantics | None = None
    """The same for the next runtime, which takes over what stays."""
    fleet: Fleet | None = None
    """What is known of backends that are balanced by load."""
    kv_feeds: Mapping[str, KvFeed] = field(default_factory=dict)
    """What their engines tell of the prompts they keep, by backend, where they do."""
    admission: Admission | None = None
    """Who waits in front of them."""
    autoscale: Autoscale | None = None
    """How many of them there should be."""
    prober: Prober | None = None
    """Who asks backends how they are, where one wants to be asked."""
    in_flight: int = 0

    @property
    def revision(self) -> str:
        """Short hash of the policy file."""
        return self.loaded.revision

    def failures(self) -> Iterator[Failures]:
        """Those of the work that goes on while this policy is in force."""
        for feed in self.kv_feeds.values():
            yield feed.loop.failures
        if self.autoscale is not None:
            yield self.autoscale.loop.failures
        if self.prober is not None:
            for loop in self.prober.loops:
                yield loop.failures

    def release(self) -> None:
        """One call less."""
        self.in_flight -= 1

    def parts(self) -> list[Resource]:
        """As they are opened: leaves, what stacks share, and the stacks (which own their tasks, never the others)."""
        return [*self.leaves.values(), *self.resources, *(stack.backend for stack in self.stacks.built())]

    async def open(self, previous: Runtime | None = None) -> None:
        """Open what the previous one has not opened already. Raises: ConfigurationError, and what else parts raise."""
        opened = {id(part) for part in previous.parts()} if previous is not None else set()
        names = {id(leaf): name for name, leaf in self.leaves.items()}
        for part in self.parts():
            if id(part) in opened:
                continue
            try:
                await part.open()
            except ConfigurationError:
                raise
            except Exception as error:  # a named border: a backend's code may be anybody's
                name = names.get(id(part))
                if name is None:
                    raise
                raise broken_backend(name, self.loaded.backends[name][0], "opened", error) from error

    async def aclose(self) -> None:
        """Close all of it, which nobody else may use by then."""
        for part in reversed(self.parts()):
            await close_part(part)


async def close_part(part: Resource) -> None:
    """Close a part of a policy; never raises."""
    try:
        await part.aclose()
    except Exception:  # a named border: what does not close must not keep the others open
        _logger.exception("a part of a policy could not be closed: %s", type(part).__name__)
