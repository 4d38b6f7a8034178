"""From a loaded policy to the runtime that answers by it. What its routes' stacks are made of stands in `stages.py`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import TYPE_CHECKING

from backends.clock import Clock
from backends.config import Config
from backends.errors import ConfigurationError
from backends.health import Probed
from backends.protocol import Backend
from backends.quotas.upstream_keys import Keyed
from backends.registry import Registry, broken_backend
from gateway.assembly.checks import check_dashboard
from gateway.assembly.kv_feeds import engine_texts, kv_feeds
from gateway.assembly.parts import Parts
from gateway.assembly.price_book import PriceBook, check_prices, read_list
from gateway.assembly.speculation import encodes_texts, mirrors_of, read_calibrations, side_routes
from gateway.assembly.stacks import Stacks
from gateway.assembly.stages import semantic_settings
from gateway.http.auth import Keyring, KeySource
from gateway.runtime import Resource, Runtime
from policies.admission.admission import Admission
from policies.autoscale import Autoscale
from policies.cache.store import Store
from policies.limits.plan import UsageRules
from policies.matching.globs import is_glob
from policies.matching.route_matcher import RouteMatcher
from policies.policy_file.load import LoadedPolicy
from policies.pool.health.prober import ProbedBackend, Prober
from policies.pool.load.fleet import Fleet, is_watched
from policies.pool.pool import Pool
from policies.pool.prompts.engine_text import EngineText
from policies.prices.listed import PriceList
from policies.schema import RouteBackend

if TYPE_CHECKING:
    from policies.cache.semantic.build import Semantics
    from policies.speculation.cascade.calibration import Calibration


@dataclass(frozen=True, slots=True)
class Prepared:
    """What follows from a policy alone."""

    loaded: LoadedPolicy
    keyring: Keyring
    matcher: RouteMatcher
    model_labels: frozenset[str]
    rules: UsageRules
    is_watched: bool
    """Whether something depends on what backends have in hand."""
    has_semantic: bool
    """Whether a route asks the semantic cache, or its encoder."""
    calibrations: Mapping[str, Calibration]
    """What cascades go by, by the names of their routes."""
    listed: PriceList | None
    """The list prices that the policy wants."""


def prepare(loaded: LoadedPolicy, clock: Clock, keys: KeySource | None = None) -> Prepared:
    """The part of assembling that touches nothing that lives, and may be done in any thread.

    Raises: ConfigurationError where the policy wants list prices, or calibrations, that cannot be read, or an extra.
    """
    check_dashboard(loaded)
    routes = loaded.policy.routes
    labels = frozenset(name for route in routes for name in route.match.models if not is_glob(name))
    return Prepared(
        loaded,
        Keyring(loaded.policy.keys, clock, keys, loaded.policy.time_zone),
        RouteMatcher(routes),
        labels,
        UsageRules(loaded.policy.limits, loaded.policy.budgets, loaded.policy.time_zone),
        is_watched=any(map(is_watched, routes)),
        has_semantic=any(semantic_settings(route) is not None or encodes_texts(route) for route in routes),
        calibrations=read_calibrations(routes),
        listed=read_list(loaded, clock),
    )


def assemble(
    loaded: LoadedPolicy,
    clock: Clock,
    store: Store,
    registry: Registry,
    previous: Runtime | None = None,
    *,
    seed: int | None = None,
    workers: int = 1,
    keys: KeySource | None = None,
) -> Runtime:
    """A runtime for that policy. A leaf whose settings are those of `previous` is taken over, connections and all.

    With a `seed` its random choices are the same each time. So many `workers` share what backends may be asked.
    `keys` are those of the key store.

    Raises: ConfigurationError where a route has a semantic cache without the extra.
    """
    prepared = prepare(loaded, clock, keys)
    steps = assemble_in_steps(prepared, clock, store, registry, previous, seed=seed, workers=workers)
    while True:
        try:
            next(steps)
        except StopIteration as over:
            runtime: Runtime = over.value
            return runtime


def assemble_in_steps(
    prepared: Prepared,
    clock: Clock,
    store: Store,
    registry: Registry,
    previous: Runtime | None = None,
    *,
    seed: int | None = None,
    workers: int = 1,
    check: Callable[[LoadedPolicy, Mapping[str, Backend]], None] | None = None,
) -> Generator[None, None, Runtime]:
    """The same in short steps, between which calls may go on; the runtime is what it returns.

    `check` looks at the leaves before anything is taken over from `previous`, where there is still nothing to undo.

    Raises: as `assemble`, and as `check`.
    """
    loaded = prepared.loaded
    leaves: dict[str, Backend] = {}
    for name, (kind, settings) in loaded.backends.items():
        leaves[name] = _leaf(name, kind, settings, clock, registry, previous, workers)
        yield
    if check is not None:
        check(loaded, leaves)
    prices = PriceBook(loaded.policy, prepared.listed, clock)
    check_prices(loaded.policy, prices)
    yield
    # Its folder stays the process's where no route has a semantic cache for a while.
    has_folder = previous is not None and previous.semantics is not None and previous.semantics.has_folder
    semantics = _semantics(loaded, clock, previous) if prepared.has_semantic or has_folder else None
    texts = engine_texts(leaves, previous)
    fleet = _fleet(loaded, leaves, clock, previous, seed, texts=texts) if prepared.is_watched else None
    try:
        yield
        feeds = kv_feeds(leaves, fleet, texts, clock, previous)
        admission = Admission(loaded.policy.routes, fleet, clock) if fleet is not None else None
        autoscale = Autoscale(loaded.policy.routes, fleet, admission, clock) if fleet and admission else None
        yield
        known = previous.leaves if previous is not None else leaves
        parts = Parts(
            loaded=loaded,
            leaves=leaves,
            newcomers=frozenset(name for name, leaf in leaves.items() if known.get(name) is not leaf),
            fleet=fleet,
            admission=admission,
            semantics=semantics,
            calibrations=prepared.calibrations,
            mirrors=mirrors_of(previous),
            store=store,
            prices=prices,
            clock=clock,
            seed=seed,
        )
        stacks = Stacks(parts)
        yield from _build_stacks(stacks, parts, previous)
        prober = _prober(leaves, [stack.pool for stack in stacks.built()], clock, seed)
        if semantics is not None:
            semantics.complete({name: prices.source(RouteBackend(ref=name)) for name in leaves})
        shared: Iterable[Resource | None] = (
            fleet,
            *dict.fromkeys(feed.text for feed in feeds.values()),
            *feeds.values(),
            admission,
            autoscale,
            prober,
            *(semantics.resources if semantics is not None else ()),
        )
        return Runtime(
            loaded=loaded,
            keyring=prepared.keyring,
            matcher=prepared.matcher,
            stacks=stacks,
            leaves=leaves,
            listed_prices=prepared.listed,
            model_labels=prepared.model_labels,
            rules=prepared.rules,
            resources=tuple(part for part in shared if part is not None),
            semantic=semantics.administration if semantics is not None and prepared.has_semantic else None,
            semantics=semantics,
            fleet=fleet,
            kv_feeds=feeds,
            admission=admission,
            autoscale=autoscale,
            prober=prober,
        )
    except BaseException:
        # A policy that does not come into force holds nothing of the one that is.
        if fleet is not None:
            fleet.release()
        raise


def _build_stacks(stacks: Stacks, parts: Parts, previous: Runtime | None) -> Iterator[None]:
    """Take over stacks that stay, and build those that work before anybody asks them; the others wait for a call."""
    for stack in previous.stacks.built() if previous is not None else ():
        stacks.keep(stack)
        yield
    probed = {name for name, leaf in parts.leaves.items() if isinstance(leaf, Probed) and leaf.health is not None}
    for route in parts.loaded.policy.routes:
        is_probed = probed and not probed.isdisjoint(part.ref for part in route.backends)
        if is_probed or semantic_settings(route) is not None or encodes_texts(route):
            stacks[route.name]
        yield


def _fleet(
    loaded: LoadedPolicy,
    leaves: Mapping[str, Backend],
    clock: Clock,
    previous: Runtime | None,
    seed: int | None,
    *,
    texts: Mapping[str, EngineText],
) -> Fleet:
    routes = [*loaded.policy.routes, *chain.from_iterable(map(side_routes, loaded.policy.routes))]
    known = previous.fleet if previous is not None else None
    folder = loaded.policy.stores.state
    return Fleet(routes, leaves, clock, random=Random(seed), folder=folder, previous=known, texts=texts)


def _prober(leaves: Mapping[str, Backend], pools: Sequence[Pool], clock: Clock, seed: int | None) -> Prober | None:
    patients = {
        name: ProbedBackend(leaf, leaf.health, [breaker for pool in pools for breaker in pool.breakers_of(leaf)])
        for name, leaf in leaves.items()
        if isinstance(leaf, Probed) and leaf.health is not None
    }
    return Prober(patients, clock, Random(seed)) if patients else None


def _semantics(loaded: LoadedPolicy, clock: Clock, previous: Runtime | None) -> Semantics:
    try:
        from policies.cache.semantic.build import Semantics
    except ImportError as error:
        raise ConfigurationError(
            f"the semantic cache lacks {error.name}: pip install 'slipstream-gateway[semantic]'"
        ) from error
    return Semantics(loaded.policy.stores, clock, Random(), previous.semantics if previous is not None else None)


def _leaf(
    name: str,
    kind: str,
    settings: Config,
    clock: Clock,
    registry: Registry,
    previous: Runtime | None,
    workers: int,
) -> Backend:
    if previous is not None and previous.loaded.backends.get(name) == (kind, settings):
        return previous.leaves[name]
    try:
        leaf = registry.kind(kind).build(name, settings, clock)
    except ConfigurationError:
        raise
    except Exception as error:  # a named border: the code may be anybody's
        raise broken_backend(name, kind, "made", error) from error
    if isinstance(leaf, Keyed):
        leaf.keys.share_among(workers)
    return leaf
