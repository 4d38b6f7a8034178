"""The stages around a route's pool, a row each, the outermost first: who has one, how it is built, how it is described.

`stacks.py` builds a stack from the last row to the first, `slipstream explain` reads the rows from the first to the
last, and the picture in docs/architecture.md is made of them. A new stage is its folder and a row in `STAGES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from backends.config import format_duration
from backends.operations import Operation
from backends.protocol import Backend, Call
from gateway.assembly.drafting import draft_exactly, exact_settings, predict, predicted_settings
from gateway.assembly.site import Site
from gateway.assembly.speculation import answering_settings, judges_of_mirror, mirror, speculate, verifiers
from policies.batching.embeddings import EmbeddingBatches
from policies.batching.settings import BatchingPolicy
from policies.cache.exact import ExactCache
from policies.cache.pacing import Pacing
from policies.cache.semantic.settings import SemanticPolicy
from policies.cache.settings import CachePolicy
from policies.policy_file.units import format_size
from policies.pool.attempts.retry import RetryBudget
from policies.pool.attempts.settings import FallbackOn, FallbacksPolicy
from policies.pool.fallback import Fallback
from policies.pool.settings import ResumePolicy
from policies.prices.price import Price
from policies.prices.required import PriceRequired
from policies.resume.stage import Resuming
from policies.schema import RoutePolicy, StoresPolicy

_Settings = TypeVar("_Settings")
_OVERLOAD: tuple[FallbackOn, ...] = ("overload",)


def _asks_nobody(_: object) -> tuple[str, ...]:
    return ()


def _takes_every(_: Call) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow(Generic[_Settings]):
    """One stage of `STAGES`."""

    name: str
    purpose: str
    """What it does, in the few words that the picture of the stack has room for."""
    settings: Callable[[RoutePolicy], _Settings | None]
    """What a route says of it. None where the route does not ask for it: then it is not in the stack."""
    build: Callable[[Backend, _Settings, Site], Backend]
    """The stage around the backend that is given."""
    describe: Callable[[_Settings, StoresPolicy], str]
    """What it does in this route, for `slipstream explain`."""
    takes: Callable[[Call], bool] = _takes_every
    """Whether a call is any of its business; others pass through it unchanged."""
    asks: Callable[[_Settings], tuple[str, ...]] = _asks_nobody
    """The routes whose stacks it asks."""


def semantic_settings(route: RoutePolicy) -> SemanticPolicy | None:
    """What a route says of its semantic cache, if it has one."""
    semantic = route.cache.semantic if route.cache is not None else None
    return semantic if semantic is not None and semantic.is_on else None


def routes_below(route: RoutePolicy) -> tuple[str, ...]:
    """Routes whose stacks the stages of this one ask."""
    asked = ((row, row.settings(route)) for row in STAGES)
    return tuple(name for row, settings in asked if settings is not None for name in row.asks(settings))


def describe_stages(route: RoutePolicy, stores: StoresPolicy, call: Call) -> list[tuple[str, str]]:
    """Name and description of each stage that the call meets in this route, the outermost first."""
    asked = ((row, row.settings(route)) for row in STAGES if row.takes(call))
    return [(row.name, row.describe(settings, stores)) for row, settings in asked if settings is not None]


class _Describes(Protocol):
    def describe(self) -> str: ...


def _in_its_words(settings: _Describes, stores: StoresPolicy) -> str:
    return settings.describe()


def _fall_back(inner: Backend, settings: FallbacksPolicy, site: Site) -> Backend:
    return Fallback(inner, [site.target(name) for name in settings.routes], settings.on, site.parts.clock)


def _degrade_to(route: RoutePolicy) -> str | None:
    return route.admission.degrade_to if route.admission is not None else None


def _degrade(inner: Backend, degrade_to: str, site: Site) -> Backend:
    return Fallback(inner, [site.target(degrade_to)], _OVERLOAD, site.parts.clock)


def _paced_cache(route: RoutePolicy) -> CachePolicy | None:
    return route.cache if route.cache is not None and route.cache.pacing != "off" else None


def _exact_cache(route: RoutePolicy) -> CachePolicy | None:
    return route.cache if route.cache is not None and route.cache.exact.enabled else None


def _cache_exactly(inner: Backend, settings: CachePolicy, site: Site) -> Backend:
    return ExactCache(inner, site.cache(settings), site.parts.store, site.parts.clock, route=site.route.name)


def _describe_exact_cache(settings: CachePolicy, stores: StoresPolicy) -> str:
    exact = settings.exact
    coalesce = exact.coalesce if settings.pacing == "off" else "off"
    store = "Redis" if stores.redis is not None else "memory"
    return (
        f"kept {format_duration(exact.ttl)} in {store} per {settings.scope}, "
        f"answers up to {format_size(exact.max_entry)}, identical calls in flight: {coalesce}"
    )


def _judges(settings: SemanticPolicy) -> tuple[str, ...]:
    return (settings.judge.route,) if settings.judge is not None else ()


def _cache_semantically(inner: Backend, settings: SemanticPolicy, site: Site) -> Backend:
    semantics = site.parts.semantics
    assert semantics is not None, "a route asks for it"
    judge = site.stacks[settings.judge.route] if settings.judge is not None else None
    asked = (judge.backend, judge.timeouts) if judge is not None else None
    assert site.route.cache is not None, "its settings are a part of that"
    return semantics.stage(site.route, inner, site.parts.leaves, asked, cache=site.cache(site.route.cache))


def _batch(inner: Backend, settings: BatchingPolicy, site: Site) -> Backend:
    num_backends = max(1, sum(part.weight > 0 for part in site.route.backends))
    return EmbeddingBatches(inner, settings, site.parts.clock, max_in_flight=num_backends)


def _resume(inner: Backend, settings: ResumePolicy, site: Site) -> Backend:
    leaves, clock = site.parts.leaves, site.parts.clock
    continues = {part.ref: leaves[part.ref].capabilities.continues for part in site.route.backends}
    return Resuming(inner, settings, continues, clock, RetryBudget(site.route.retry.budget_percent, clock))


def _require_price(inner: Backend, _: bool, site: Site) -> Backend:
    sources = [(part.model, site.parts.prices.source(part)) for part in site.route.everybody]

    def prices_of(model: str) -> list[Price | None]:
        return [source.of(own or model) if source is not None else None for own, source in sources]

    return PriceRequired(inner, prices_of)


STAGES: Sequence[StageRow[Any]] = (
    StageRow(
        name="fallback",
        purpose="other routes, if this one cannot answer",
        settings=lambda route: route.fallbacks,
        build=_fall_back,
        describe=_in_its_words,
        asks=lambda settings: settings.routes,
    ),
    StageRow(
        name="degrade",
        purpose="another route, if this one has no room in time",
        settings=_degrade_to,
        build=_degrade,
        describe=lambda degrade_to, stores: f"on overload: route {degrade_to}",
        asks=lambda degrade_to: (degrade_to,),
    ),
    StageRow(
        name="pacing",
        purpose="stored answers come as late as new ones, with no sign of it",
        settings=_paced_cache,
        build=lambda inner, settings, site: Pacing(inner, site.parts.clock, Random()),
        describe=lambda *_: "stored answers come when they came at first, with no sign of it",
    ),
    StageRow(
        name="exact cache",
        purpose="same call, same answer; joins an identical call in flight",
        settings=_exact_cache,
        build=_cache_exactly,
        describe=_describe_exact_cache,
    ),
    StageRow(
        name="semantic cache",
        purpose="same question in other words, same answer, within a bound on wrong ones",
        settings=semantic_settings,
        build=_cache_semantically,
        describe=_in_its_words,
        asks=_judges,
    ),
    StageRow(
        name="batching",
        purpose="embeddings of many callers in one call, while the backends are busy",
        settings=lambda route: route.batching,
        build=_batch,
        describe=_in_its_words,
        takes=lambda call: call.operation is Operation.EMBEDDING,
    ),
    StageRow(
        name="mirror",
        purpose="copies for a candidate, off the clients' path",
        settings=lambda route: route.mirror,
        build=mirror,
        describe=_in_its_words,
        asks=judges_of_mirror,
        takes=lambda call: call.operation is Operation.CHAT,
    ),
    StageRow(
        name="speculation",
        purpose="a smaller backend goes first, or beside",
        settings=answering_settings,
        build=speculate,
        describe=_in_its_words,
        asks=verifiers,
        takes=lambda call: call.operation.traits.has_choices,
    ),
    StageRow(
        name="resume",
        purpose="a stream that breaks off goes on elsewhere",
        settings=lambda route: route.resume,
        build=_resume,
        describe=_in_its_words,
        takes=lambda call: call.body is not None and bool(call.body.get("stream")),
    ),
    StageRow(
        name="price",
        purpose="only models whose price is known",
        settings=lambda route: route.require_price or None,
        build=_require_price,
        describe=lambda *_: "only models whose price is known",
    ),
    StageRow(
        name="draft",
        purpose="a small model guesses what a stream says next, and changes nothing",
        settings=exact_settings,
        build=draft_exactly,
        describe=_in_its_words,
        takes=lambda call: call.body is not None and bool(call.body.get("stream")),
    ),
    StageRow(
        name="prediction",
        purpose="a text at hand that the answer will probably repeat; it changes nothing",
        settings=predicted_settings,
        build=predict,
        describe=_in_its_words,
        takes=lambda call: call.operation is Operation.CHAT,
    ),
)
"""The pool and its backends stand behind the last."""
