"""The one place that constructs: from a loaded policy to stacks of backends, in the order in which calls meet them.

    fallback -> pacing -> exact cache -> semantic cache -> batching -> resume -> pool (balance, retry, breaker) -> leaf

A stage that a route does not ask for is not in its stack. `stacks.py` makes the stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from backends.clock import Clock
from backends.config import Config
from backends.errors import ConfigurationError
from backends.health import Probed
from backends.kv_events import KvPublisher
from backends.protocol import Backend, Operation
from backends.registry import Registry, broken_backend
from backends.resume import Continues
from gateway.api.owners import Owners
from gateway.http.auth import Keyring
from gateway.runtime import Runtime
from gateway.stacks import Stacks, has_semantic
from policies.admission.admission import Admission
from policies.autoscale import Autoscale
from policies.cache.store import Store
from policies.cache.store_memory import MemoryEntryStore
from policies.matching.globs import is_glob
from policies.matching.match import RouteMatcher
from policies.policy_file.load import LoadedPolicy
from policies.pool.balance.settings import PricePolicy
from policies.pool.health.prober import Patient, Prober
from policies.pool.load.fleet import Fleet, is_watched
from policies.pool.pool import Pool
from policies.pool.prompts.engine_text import EngineText, Writing
from policies.schema import StoresPolicy

if TYPE_CHECKING:
    from gateway.batches.service import Batches
    from gateway.core import Core
    from policies.cache.semantic.build import Semantics
    from policies.pool.prompts.kv_feed import KvFeed


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
        from policies.objects.owners_redis import build_owners_redis

        return Owners(clock, build_owners_redis(policy.redis, clock))
    folder = Path(policy.ledger.folder) if policy.ledger is not None else shared_directory
    if folder is None:
        return Owners(clock)
    from gateway.api.owners_file import OwnersInFile

    return Owners(clock, OwnersInFile(folder / "objects.sqlite3", clock))


def build_batches(policy: StoresPolicy, core: Core) -> Batches | None:
    """What answers /v1/files and /v1/batches; None where the policy keeps no ledger."""
    if policy.ledger is None:
        return None
    from gateway.batches.service import Batches
    from policies.pool.attempts.retry import retry_after_s
    from policies.pool.balance.pick import Price

    def amount(price: PricePolicy, tokens: int, uncached: int, output: int) -> float:
        return Price(**price.model_dump()).of(tokens, uncached, output) / 1e6

    return Batches(core, policy.ledger, amount=amount, retry_after=retry_after_s)


def check_batches(loaded: LoadedPolicy, leaves: Mapping[str, Backend]) -> None:
    """Whether backends that are to take batches may have an API for them. Raises: ConfigurationError."""
    for route in loaded.policy.routes:
        for part in route.backends if route.batch.mode == "provider" else ():
            if Operation.PASSTHROUGH not in leaves[part.ref].capabilities.operations:
                raise ConfigurationError(
                    f'route "{route.name}": batch: provider needs backends of type openai, which "{part.ref}" is not'
                )


def check_resume(loaded: LoadedPolicy, leaves: Mapping[str, Backend]) -> None:
    """Whether streams that break off have where to go on. Raises: ConfigurationError."""
    for route in loaded.policy.routes:
        if route.resume is None:
            continue
        able = frozenset[Continues]().union(*(leaves[part.ref].capabilities.continues for part in route.backends))
        if "tokens" not in able and (route.resume.mode == "exact" or not able):
            raise ConfigurationError(
                f'route "{route.name}": resume needs backends that go on with an answer: type engine, or type openai '
                "with `continues: slipstream`" + (", final_message or prefill" if route.resume.mode != "exact" else "")
            )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What follows from a policy alone."""

    loaded: LoadedPolicy
    keyring: Keyring
    matcher: RouteMatcher
    model_labels: frozenset[str]
    is_watched: bool
    """Whether something depends on what backends have in hand."""
    has_semantic: bool
    """Whether a route asks the semantic cache."""


def prepare(loaded: LoadedPolicy) -> Prepared:
    """The part of assembling that touches nothing that lives, and may be done in any thread."""
    routes = loaded.policy.routes
    labels = frozenset(name for route in routes for name in route.match.models if not is_glob(name))
    return Prepared(
        loaded,
        Keyring(loaded.policy.keys),
        RouteMatcher(routes),
        labels,
        is_watched=any(map(is_watched, routes)),
        has_semantic=any(map(has_semantic, routes)),
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
    steps = assemble_in_steps(prepare(loaded), clock, store, registry, previous, seed=seed)
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
    check: Callable[[LoadedPolicy, Mapping[str, Backend]], None] | None = None,
) -> Generator[None, None, Runtime]:
    """The same in short steps, between which calls may go on; the runtime is what it returns.

    `check` looks at the leaves before anything is taken over from `previous`, where there is still nothing to undo.

    Raises: as `assemble`, and as `check`.
    """
    loaded = prepared.loaded
    leaves: dict[str, Backend] = {}
    for name, (kind, settings) in loaded.backends.items():
        leaves[name] = _leaf(name, kind, settings, clock, registry, previous)
        yield
    if check is not None:
        check(loaded, leaves)
    yield
    semantics = _semantics(loaded, clock, previous) if prepared.has_semantic else None
    texts = _engine_texts(leaves, previous)
    fleet = _fleet(loaded, leaves, clock, previous, seed, texts=texts) if prepared.is_watched else None
    try:
        yield
        feeds = _kv_feeds(leaves, fleet, texts, clock, previous)
        admission = Admission(loaded.policy.routes, fleet, clock) if fleet is not None else None
        autoscale = Autoscale(loaded.policy.routes, fleet, admission, clock) if fleet and admission else None
        yield
        known = previous.leaves if previous is not None else leaves
        newcomers = frozenset(name for name, leaf in leaves.items() if known.get(name) is not leaf)
        stacks = Stacks(loaded, leaves, newcomers, fleet, admission, semantics, clock=clock, store=store, seed=seed)
        probed = {name for name, leaf in leaves.items() if isinstance(leaf, Probed) and leaf.health is not None}
        for stack in previous.stacks.built() if previous is not None else ():
            stacks.keep(stack)
            yield
        for route in loaded.policy.routes:
            if has_semantic(route) or (probed and not probed.isdisjoint(part.ref for part in route.backends)):
                stacks[route.name]
            yield
        prober = _prober(leaves, [stack.pool for stack in stacks.built()], clock, seed)
        return Runtime(
            loaded=loaded,
            keyring=prepared.keyring,
            matcher=prepared.matcher,
            stacks=stacks,
            leaves=leaves,
            model_labels=prepared.model_labels,
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
    except BaseException:
        # A policy that does not come into force holds nothing of the one that is.
        if fleet is not None:
            fleet.release()
        raise


def _fleet(
    loaded: LoadedPolicy,
    leaves: Mapping[str, Backend],
    clock: Clock,
    previous: Runtime | None,
    seed: int | None,
    *,
    texts: Mapping[str, EngineText],
) -> Fleet:
    routes = loaded.policy.routes
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
            from policies.pool.prompts.kv_feed import KvFeed
        except ImportError as error:
            raise _lacks(error) from error
        feeds[name] = KvFeed(name, leaf.kv_events, slots, text, index=fleet.index, clock=clock)
    return feeds


def _prober(leaves: Mapping[str, Backend], pools: Sequence[Pool], clock: Clock, seed: int | None) -> Prober | None:
    patients = {
        name: Patient(leaf, leaf.health, [breaker for pool in pools for breaker in pool.breakers_of(leaf)])
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
    name: str, kind: str, settings: Config, clock: Clock, registry: Registry, previous: Runtime | None
) -> Backend:
    if previous is not None and previous.loaded.backends.get(name) == (kind, settings):
        return previous.leaves[name]
    try:
        return registry.kind(kind).build(name, settings, clock)
    except ConfigurationError:
        raise
    except Exception as error:  # a named border: the code may be anybody's
        raise broken_backend(name, kind, "made", error) from error
