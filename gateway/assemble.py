"""The one place that constructs: from a loaded policy to stacks of backends, in the order in which calls meet them.

    fallback -> pacing -> exact cache -> semantic cache -> batching -> pool (balance, retry, breaker) -> leaf

A stage that a route does not ask for is not in its stack.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from backends.clock import Clock
from backends.config import Config
from backends.errors import ConfigurationError
from backends.health import Probed
from backends.kv_events import KvPublisher
from backends.protocol import Backend, Operation, Timeouts
from backends.registry import Registry
from gateway.auth import Keyring
from gateway.owners import Owners
from gateway.runtime import Runtime, Stack
from policies.admission.admission import Admission
from policies.autoscale import Autoscale
from policies.batching.embeddings import EmbeddingBatches
from policies.cache.exact import ExactCache
from policies.cache.pacing import Pacing
from policies.cache.store import Store
from policies.cache.store_memory import MemoryEntryStore
from policies.load import LoadedPolicy
from policies.match import RouteMatcher
from policies.passthrough import PassRules
from policies.pool.engine_text import EngineText, Writing
from policies.pool.fallback import Fallback, Target
from policies.pool.fleet import Fleet, is_watched
from policies.pool.hedge import Hedging
from policies.pool.pool import Member, Pool
from policies.pool.prober import Patient, Prober
from policies.schema import FallbackOn, RoutePolicy, StoresPolicy
from policies.schema_routing import PricePolicy

if TYPE_CHECKING:
    from gateway.batches.service import Batches
    from gateway.core import Core
    from policies.cache.semantic.build import Semantics
    from policies.pool.kv_feed import KvFeed


_OVERLOAD: tuple[FallbackOn, ...] = ("overload",)


def build_store(policy: StoresPolicy, clock: Clock) -> Store:
    """Where cached answers live.

    Raises: ConfigurationError if Redis is asked for without the extra.
    """
    if policy.redis is not None:
        from policies.cache.store_redis import build_redis_store

        return build_redis_store(policy.redis, clock)
    return MemoryEntryStore(policy.memory.max_size, clock)


def build_owners(policy: StoresPolicy, clock: Clock, shared_directory: Path | None) -> Owners:
    """Who remembers whose the objects at upstreams are; together with other processes where there is a place for it."""
    if policy.redis is not None:
        from policies.owners_redis import build_owners_redis

        return Owners(clock, build_owners_redis(policy.redis, clock))
    folder = Path(policy.ledger.folder) if policy.ledger is not None else shared_directory
    if folder is None:
        return Owners(clock)
    from gateway.owners_file import OwnersInFile

    return Owners(clock, OwnersInFile(folder / "objects.sqlite3", clock))


def build_batches(policy: StoresPolicy, core: Core) -> Batches | None:
    """What answers /v1/files and /v1/batches; None where the policy keeps no ledger."""
    if policy.ledger is None:
        return None
    from gateway.batches.service import Batches
    from policies.pool.pick import Price
    from policies.pool.retry import retry_after_s

    def amount(price: PricePolicy, tokens: int, uncached: int, output: int) -> float:
        return Price(**price.model_dump()).of(tokens, uncached, output) / 1e6

    return Batches(core, policy.ledger, amount=amount, retry_after=retry_after_s)


def check_batches(runtime: Runtime) -> None:
    """Whether backends that are to take batches may have an API for them. Raises: ConfigurationError."""
    for route in runtime.loaded.policy.routes:
        for part in route.backends if route.batch.mode == "provider" else ():
            if Operation.PASSTHROUGH not in runtime.leaves[part.ref].capabilities.operations:
                raise ConfigurationError(
                    f'route "{route.name}": batch: provider needs backends of type openai, which "{part.ref}" is not'
                )


def assemble(
    loaded: LoadedPolicy,
    clock: Clock,
    store: Store,
    registry: Registry,
    previous: Runtime | None = None,
    *,
    seed: int | None = None,
) -> Runtime:
    """A runtime for that policy. A leaf whose settings are those of `previous` is taken over, connections and all.

    With a `seed` its random choices are the same each time.

    Raises: ConfigurationError where a route has a semantic cache without the extra.
    """
    leaves = {
        name: _leaf(name, kind, settings, clock, registry, previous)
        for name, (kind, settings) in loaded.backends.items()
    }
    routes = {route.name: route for route in loaded.policy.routes}
    order = TopologicalSorter({name: _routes_below(route) for name, route in routes.items()}).static_order()
    semantics = _semantics(loaded, clock, previous)
    texts = _engine_texts(leaves, previous)
    fleet = _fleet(loaded, leaves, clock, previous, seed, texts=texts)
    feeds = _kv_feeds(leaves, fleet, texts, clock, previous)
    admission = Admission(loaded.policy.routes, fleet, clock) if fleet is not None else None
    autoscale = Autoscale(loaded.policy.routes, fleet, admission, clock) if fleet and admission else None
    known = previous.leaves if previous is not None else leaves
    newcomers = frozenset(name for name, leaf in leaves.items() if known.get(name) is not leaf)
    is_shared = len({key.tenant for key in loaded.policy.keys}) > 1
    stacks: dict[str, Stack] = {}
    for name in order:
        pool = _pool(routes[name], leaves, newcomers, fleet, admission, clock=clock, seed=seed)
        stacks[name] = _stack(
            routes[name], pool, leaves, stacks, clock=clock, store=store, semantics=semantics, is_shared=is_shared
        )
    prober = _prober(leaves, [stack.pool for stack in stacks.values()], clock, seed)
    return Runtime(
        loaded=loaded,
        keyring=Keyring(loaded.policy.keys),
        matcher=RouteMatcher(loaded.policy.routes),
        stacks=stacks,
        leaves=leaves,
        model_labels=_model_labels(loaded),
        resources=(
            *((fleet,) if fleet is not None else ()),
            *{feed.text: None for feed in feeds.values()},
            *feeds.values(),
            *((admission,) if admission is not None else ()),
            *((autoscale,) if autoscale is not None else ()),
            *((prober,) if prober is not None else ()),
            *(semantics.settled().resources if semantics is not None else ()),
        ),
        semantic=semantics.administration if semantics is not None else None,
        semantics=semantics,
        fleet=fleet,
        kv_feeds=feeds,
        admission=admission,
        autoscale=autoscale,
        prober=prober,
    )


def _fleet(
    loaded: LoadedPolicy,
    leaves: Mapping[str, Backend],
    clock: Clock,
    previous: Runtime | None,
    seed: int | None,
    *,
    texts: Mapping[str, EngineText],
) -> Fleet | None:
    routes = loaded.policy.routes
    if not any(is_watched(route) for route in routes):
        return None
    known = previous.fleet if previous is not None else None
    folder = loaded.policy.stores.state
    return Fleet(routes, leaves, clock, random=Random(seed), folder=folder, previous=known, texts=texts)


def _engine_texts(leaves: Mapping[str, Backend], previous: Runtime | None) -> dict[str, EngineText]:
    """How the engines of backends write prompts, one for all that do it alike."""
    known = {feed.text.way: feed.text for feed in previous.kv_feeds.values()} if previous is not None else {}
    texts = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, KvPublisher) and leaf.kv_events is not None:
            text = EngineText(leaf.kv_events, _load_prompt_text)
            texts[name] = known.setdefault(text.way, text)
    return texts


def _load_prompt_text(folder: str) -> Writing:
    try:
        from backends.serving.prompt_text import load_prompt_text
    except ImportError as error:
        raise _lacks(error) from error
    return load_prompt_text(folder)


def _lacks(error: ImportError) -> ConfigurationError:
    return ConfigurationError(f"kv_events lacks {error.name}: pip install 'slipstream-gateway[kv-events]'")


def _kv_feeds(
    leaves: Mapping[str, Backend],
    fleet: Fleet | None,
    texts: Mapping[str, EngineText],
    clock: Clock,
    previous: Runtime | None,
) -> dict[str, KvFeed]:
    """Feeds of the backends about which some route asks what they hold."""
    feeds: dict[str, KvFeed] = {}
    if fleet is None or not fleet.wants_blocks:
        return feeds
    for name, text in texts.items():
        leaf, slots = leaves[name], fleet.slots(name)
        if not slots or not isinstance(leaf, KvPublisher) or leaf.kv_events is None:
            continue
        known = previous.kv_feeds.get(name) if previous is not None and previous.leaves.get(name) is leaf else None
        if known is not None and known.slots == slots:
            feeds[name] = known
            continue
        try:
            from policies.pool.kv_feed import KvFeed
        except ImportError as error:
            raise _lacks(error) from error
        feeds[name] = KvFeed(name, leaf.kv_events, slots, text, index=fleet.index, clock=clock)
    return feeds


def _pool(
    route: RoutePolicy,
    leaves: Mapping[str, Backend],
    newcomers: Collection[str],
    fleet: Fleet | None,
    admission: Admission | None,
    *,
    clock: Clock,
    seed: int | None,
) -> Pool:
    has_weights = route.balance != "round_robin"
    gate = admission.gates.get(route.name) if admission is not None else None
    hedging = None
    if route.hedge is not None:
        hedging = Hedging(route.hedge, clock, gate.is_calm) if gate is not None else Hedging(route.hedge, clock)
    return Pool(
        route.name,
        [
            Member(
                leaves[part.ref],
                part.model,
                part.weight if has_weights else min(part.weight, 1),
                part.priority,
                is_new=part.ref in newcomers,
            )
            for part in route.backends
        ],
        retry=route.retry,
        breaker=route.circuit_breaker,
        clock=clock,
        random=Random(seed),
        routing=fleet.routing(route.name) if fleet is not None else None,
        gate=gate,
        hedging=hedging,
        provider_cache=route.routing.provider_cache,
        falls_back_on=route.fallbacks.on if route.fallbacks is not None else (),
        limits_first_token=route.timeouts.first_token is None,
    )


def _prober(leaves: Mapping[str, Backend], pools: Sequence[Pool], clock: Clock, seed: int | None) -> Prober | None:
    patients = {
        name: Patient(leaf, leaf.health, [breaker for pool in pools for breaker in pool.breakers_of(leaf)])
        for name, leaf in leaves.items()
        if isinstance(leaf, Probed) and leaf.health is not None
    }
    return Prober(patients, clock, Random(seed)) if patients else None


def _semantics(loaded: LoadedPolicy, clock: Clock, previous: Runtime | None) -> Semantics | None:
    if not any(_has_semantic(route) for route in loaded.policy.routes):
        return None
    try:
        from policies.cache.semantic.build import Semantics
    except ImportError as error:
        raise ConfigurationError(
            f"the semantic cache lacks {error.name}: pip install 'slipstream-gateway[semantic]'"
        ) from error
    return Semantics(loaded.policy.stores, clock, Random(), previous.semantics if previous is not None else None)


def _has_semantic(route: RoutePolicy) -> bool:
    return route.cache is not None and route.cache.semantic is not None and route.cache.semantic.is_on


def _leaf(
    name: str, kind: str, settings: Config, clock: Clock, registry: Registry, previous: Runtime | None
) -> Backend:
    if previous is not None and previous.loaded.backends.get(name) == (kind, settings):
        return previous.leaves[name]
    return registry.kind(kind).build(name, settings, clock)


def _stack(
    route: RoutePolicy,
    pool: Pool,
    leaves: Mapping[str, Backend],
    stacks: Mapping[str, Stack],
    *,
    clock: Clock,
    store: Store,
    semantics: Semantics | None,
    is_shared: bool,
) -> Stack:
    timeouts = Timeouts(
        connect_s=route.timeouts.connect,
        first_token_s=route.timeouts.first_token or Timeouts().first_token_s,
        stream_idle_s=route.timeouts.stream_idle,
        total_s=route.timeouts.total,
    )
    backend: Backend = pool
    batches = None
    if route.batching is not None:
        num_backends = max(1, sum(part.weight > 0 for part in route.backends))
        batches = backend = EmbeddingBatches(pool, route.batching, clock, max_in_flight=num_backends)
    if semantics is not None and _has_semantic(route):
        judges = [(stacks[name].backend, stacks[name].timeouts) for name in _judges(route)]
        backend = semantics.stage(route, backend, leaves, judges[0] if judges else None)
    if route.cache is not None and route.cache.exact.enabled:
        backend = ExactCache(backend, route.cache, store, clock, route=route.name)
    if route.cache is not None and route.cache.pacing != "off":
        backend = Pacing(backend, clock, Random())
    if route.admission is not None and route.admission.degrade_to is not None:
        degraded = stacks[route.admission.degrade_to]
        target = Target(route.admission.degrade_to, degraded.backend, degraded.timeouts)
        backend = Fallback(backend, [target], _OVERLOAD, clock)
    if route.fallbacks is not None:
        targets = [Target(name, stacks[name].backend, stacks[name].timeouts) for name in route.fallbacks.routes]
        backend = Fallback(backend, targets, route.fallbacks.on, clock)
    return Stack(
        policy=route,
        backend=backend,
        timeouts=timeouts,
        lists_models_from=tuple({part.ref: leaves[part.ref] for part in route.backends}.values()),
        pool=pool,
        batches=batches,
        operations=backend.capabilities.operations,
        slo=route.slo.limits if route.slo is not None else None,
        passes=PassRules(route.passthrough, is_shared=is_shared),
    )


def _routes_below(route: RoutePolicy) -> tuple[str, ...]:
    """Routes whose stacks this one asks."""
    fallbacks = route.fallbacks.routes if route.fallbacks is not None else ()
    degraded = (route.admission.degrade_to,) if route.admission is not None and route.admission.degrade_to else ()
    return (*fallbacks, *degraded, *_judges(route))


def _judges(route: RoutePolicy) -> tuple[str, ...]:
    semantic = route.cache.semantic if route.cache is not None else None
    return (semantic.judge.route,) if semantic is not None and semantic.judge is not None else ()


def _model_labels(loaded: LoadedPolicy) -> frozenset[str]:
    return frozenset(
        name for route in loaded.policy.routes for name in route.match.models if not any(sign in name for sign in "*?[")
    )
