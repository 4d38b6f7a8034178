"""Every replica that some route balances by load, and what has been learned of them: over reloads and restarts.

One per policy in force, opened and closed with it; a new one takes over the replicas whose backends stay.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError
from backends.json_errors import NOT_JSON
from backends.protocol import Backend
from policies.atomic_file import replace_file
from policies.pool.balance.pick import (
    ConsistentHash,
    Latency,
    LeastCost,
    LeastRequest,
    LeastTokens,
    Picker,
    PickerCounters,
    PowerOfTwo,
    PredictedCost,
)
from policies.pool.load.latency_model import Doubt
from policies.pool.load.replica import Replica, ReplicaStatistics
from policies.pool.load.routing import Routing
from policies.pool.prompts.engine_text import EngineText
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.schema import RouteBackend, RoutePolicy

STATE_FILE = "latency.json"
_NO_TEXTS: Mapping[str, EngineText] = MappingProxyType({})

_logger = logging.getLogger(__name__)


class FleetTally(msgspec.Struct, frozen=True):
    """What has happened since the last time: decisions without a prediction by route and reason, and by replica the
    prompt tokens sent to it, and those of them that it was thought to hold."""

    without_prediction: Mapping[tuple[str, Doubt], int]
    tokens: Mapping[str, tuple[int, int]]


class Fleet:
    """Replicas by backend and model, and the routings of the routes that share them.

    `folder` is where learned latency models are kept, None to forget them at the end.
    """

    def __init__(
        self,
        routes: Iterable[RoutePolicy],
        leaves: Mapping[str, Backend],
        clock: Clock,
        *,
        random: Random,
        folder: str | None = None,
        previous: Fleet | None = None,
        texts: Mapping[str, EngineText] = _NO_TEXTS,
    ) -> None:
        """`texts`: by backend how its engine writes prompts, where it tells what it holds.

        Raises: ConfigurationError where a route's backends write in different ways.
        """
        self._path = Path(folder, STATE_FILE) if folder is not None else None
        self._clock = clock
        self._random = random
        self._leaves = leaves
        self._texts = texts
        self._previous = previous
        self.index: PrefixIndex = previous.index if previous is not None else PrefixIndex()
        self._replicas: dict[str, Replica] = {}
        self._backends: dict[str, Backend] = {}
        self._routings: dict[str, Routing] = {}
        self._is_closed = False
        routes = tuple(routes)
        # How long a route takes to which late calls go has to be known before they are late.
        beyond = {beyond_admission(route) for route in routes}
        balanced = [route for route in routes if is_watched(route) or route.name in beyond]
        watched = {part.ref for route in balanced for part in route.backends}
        self.wants_blocks = wants_blocks = any(_asks_what_is_kept(route) for route in balanced)
        try:
            for route in routes:
                if not watched.isdisjoint(part.ref for part in route.backends):
                    self._routings[route.name] = self._routing(route, wants_blocks=wants_blocks)
        except BaseException:
            self.release()
            raise
        self._previous = None

    @property
    def names(self) -> frozenset[str]:
        """The replicas' names."""
        return frozenset(self._replicas)

    def routing(self, route: str) -> Routing | None:
        """That of a route; None where it neither balances by load nor shares a backend with one that does."""
        return self._routings.get(route)

    def slots(self, backend: str) -> tuple[int, ...]:
        """Those in the index of a backend's replicas; one for each model that it is asked for."""
        leaf = self._leaves[backend]
        return tuple(replica.slot for name, replica in self._replicas.items() if self._backends[name] is leaf)

    def replica_of(self, name: str, backend: Backend) -> Replica | None:
        """The replica of that name, if that very backend is behind it."""
        return self._replicas[name] if self._backends.get(name) is backend else None

    async def open(self) -> None:
        """Read what was learned in an earlier life. What cannot be read is left out.

        Raises: ConfigurationError if the folder cannot be made.
        """
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"stores.state: {self._path.parent} cannot be a folder: {error}") from error
        saved = read_state(self._path)
        for name, replica in self._replicas.items():
            if name in saved and not replica.model.num_observations:
                try:
                    replica.model.load(saved[name])
                except ValueError as error:
                    _logger.warning("%s: %s is learned anew: %s", self._path, name, error)

    async def aclose(self) -> None:
        """Write down what was learned, and let go of the replicas. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._path is not None:
            models = {
                name: replica.model.dump() for name, replica in self._replicas.items() if replica.model.doubt is None
            }
            await asyncio.to_thread(_write_state, self._path, models)
        self._let_go()

    def release(self) -> None:
        """As `aclose`, of one that was never in force: nothing is written down."""
        if not self._is_closed:
            self._is_closed = True
            self._let_go()

    def statistics(self) -> list[ReplicaStatistics]:
        """A snapshot of every replica."""
        return [replica.statistics() for replica in self._replicas.values()]

    def take_tally(self) -> FleetTally:
        """What has happened since the last time."""
        decisions = {}
        for route, routing in self._routings.items():
            for doubt, number in routing.counters.take().items():
                decisions[route, doubt] = number
        return FleetTally(decisions, {name: replica.take_tokens() for name, replica in self._replicas.items()})

    def _let_go(self) -> None:
        for replica in self._replicas.values():
            replica.release()

    def _routing(self, route: RoutePolicy, *, wants_blocks: bool) -> Routing:
        counters = PickerCounters()
        replicas = [self._replica(part, route.routing.cache_tokens) for part in route.backends]
        picker = self._picker(route, counters)
        models = {part.model for part in route.backends}
        return Routing(
            replicas,
            self.index,
            picker=picker,
            counters=counters,
            wants_blocks=wants_blocks,
            text=self._text(route),
            model=models.pop() if len(models) == 1 else None,
        )

    def _text(self, route: RoutePolicy) -> EngineText | None:
        texts = {self._texts[part.ref] for part in route.backends if part.ref in self._texts}
        if len(texts) > 1:
            raise ConfigurationError(
                f'route "{route.name}": its backends have kv_events of different `tokenizer` or `scope`; a prompt is '
                "compared in one way only: give them the same, or a route each"
            )
        return texts.pop() if texts else None

    def _replica(self, part: RouteBackend, cache_tokens: int) -> Replica:
        name = replica_name(part)
        backend = self._leaves[part.ref]
        replica = self._replicas.get(name)
        if replica is None:
            replica = self._previous.replica_of(name, backend) if self._previous is not None else None
            if replica is None:
                replica = Replica(name, cache_tokens, self.index, self._clock)
            else:
                replica.resize(cache_tokens)
            replica.hold()
            self._replicas[name] = replica
            self._backends[name] = backend
        elif cache_tokens > replica.cache_tokens:
            replica.resize(cache_tokens)
        return replica

    def _picker(self, route: RoutePolicy, counters: PickerCounters) -> Picker | None:
        random, policy = self._random, route.routing
        match route.balance:
            case "predicted_cost":
                return PredictedCost(random, counters, eta=policy.eta, gamma=policy.gamma)
            case "least_tokens":
                return LeastTokens(random)
            case "least_request":
                return LeastRequest(random)
            case "p2c":
                return PowerOfTwo(random)
            case "consistent_hash":
                return ConsistentHash()
            case "latency":
                return Latency(random, counters)
            case "cost":
                return LeastCost(random)
            case _:
                return None


def is_balanced_by_load(route: RoutePolicy) -> bool:
    """Whether a route's choice depends on more than whose turn it is, and there is one."""
    in_rotation = [part.priority for part in route.backends if part.weight]
    return route.balance not in ("weighted", "round_robin") and len(in_rotation) > len(set(in_rotation))


def is_watched(route: RoutePolicy) -> bool:
    """Whether something about a route depends on what its backends have in hand."""
    return route.admission is not None or route.hedge is not None or is_balanced_by_load(route)


def beyond_admission(route: RoutePolicy) -> str | None:
    """The route to which its admission's calls go that would be late; the first that is asked."""
    if route.admission is None:
        return None
    if route.admission.degrade_to is not None:
        return route.admission.degrade_to
    fallbacks = route.fallbacks
    return fallbacks.routes[0] if fallbacks is not None and "overload" in fallbacks.on else None


def replica_name(part: RouteBackend) -> str:
    """A replica's name: the backend's, and the model it is asked for where the route says so."""
    return part.ref if part.model is None else f"{part.ref}:{part.model}"


def _asks_what_is_kept(route: RoutePolicy) -> bool:
    """Whether a route's choice depends on which backend holds a prompt's beginning."""
    # Where the route names no price, the backend or a list may have one for what was kept.
    has_prices = any(part.price is None or part.price.cached_input_per_1m is not None for part in route.backends)
    return route.balance == "predicted_cost" or (route.balance == "cost" and has_prices)


def read_state(path: Path) -> dict[str, Any]:
    """Saved latency models by replica; empty where there are none or the file cannot be read, which is logged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (*NOT_JSON, OSError) as error:
        _logger.warning("%s cannot be read, latency models are learned anew: %s", path, error)
        return {}


def _write_state(path: Path, models: Mapping[str, Any]) -> None:
    """Replace the file whole. Several workers may do so at once: the last one wins."""
    try:
        replace_file(path, msgspec.json.encode(models), writer=f".{os.getpid()}")
    except OSError as error:
        _logger.warning("%s cannot be written, what was learned of latencies is lost: %s", path, error)
