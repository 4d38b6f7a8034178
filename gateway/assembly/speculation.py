"""The stage in which a smaller backend may answer: what it is made of, by the mode that its route asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, assert_never, get_args

from backends.errors import ConfigurationError
from backends.protocol import Backend
from gateway.assembly.pools import build_pool
from gateway.assembly.site import Site
from policies.mirror.settings import MirrorPolicy
from policies.pool.attempts.settings import FallbackOn, FallbacksPolicy, RetryPolicy
from policies.pool.balance.settings import RoutingPolicy
from policies.pool.pool import Pool
from policies.schema import RouteBackend, RoutePolicy
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.settings import AnsweringPolicy, CascadePolicy, ExactPolicy, PredictedPolicy, RacePolicy

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.mirror.stage import Mirror
    from policies.speculation.cascade.calibration import Calibration
    from policies.speculation.cascade.stage import DraftAcceptance


def answering_settings(route: RoutePolicy) -> AnsweringPolicy | None:
    """What a route says of a smaller backend that may answer, if it has one."""
    return None if isinstance(route.speculative, ExactPolicy | PredictedPolicy) else route.speculative


def verifiers(settings: AnsweringPolicy) -> tuple[str, ...]:
    """The routes whose stacks it asks."""
    if isinstance(settings, AutoPolicy):
        return settings.elsewhere
    return (settings.verifier.route,) if isinstance(settings, CascadePolicy) and settings.verifier is not None else ()


def encodes_texts(route: RoutePolicy) -> bool:
    """Whether a route needs the encoder for more than a cache."""
    speculative = route.speculative
    return (
        route.mirror is not None
        or (isinstance(speculative, CascadePolicy) and speculative.accept == "router")
        or (isinstance(speculative, AutoPolicy) and speculative.calibration is not None)
    )


def side_routes(route: RoutePolicy) -> list[RoutePolicy]:
    """Those of whoever is asked beside a route's backends."""
    sides = (("draft", route.draft), ("candidate", route.candidate))
    return [side_route(route, part, role) for role, part in sides if part is not None]


def side_route(route: RoutePolicy, part: RouteBackend, role: str) -> RoutePolicy:
    """The route of that backend alone, under a name that no policy can give: one attempt, left where it is silent."""
    others = FallbacksPolicy.model_construct(on=get_args(FallbackOn), routes=(f"{route.name}:target",))
    return route.model_copy(
        update={
            "name": f"{route.name}:{role}",
            "backends": (part,),
            "routing": RoutingPolicy(),
            "retry": RetryPolicy(attempts=0),
            "fallbacks": others,
            **dict.fromkeys(("slo", "admission", "hedge", "resume", "cache", "batching", "speculative", "mirror")),
        }
    )


def draft_pool(site: Site) -> Pool:
    """The pool of a route's draft alone."""
    assert site.route.draft is not None, "the route asks for it"
    return build_pool(side_route(site.route, site.route.draft, "draft"), site.parts)


def read_calibrations(routes: Sequence[RoutePolicy]) -> dict[str, Calibration]:
    """Those of routes that have a cascade, by the routes' names. Raises: ConfigurationError."""
    found = {}
    for route in routes:
        settings = route.speculative
        if isinstance(settings, CascadePolicy | AutoPolicy) and settings.calibration is not None:
            accept = settings.accept if isinstance(settings, CascadePolicy) else "router"
            try:
                from policies.speculation.cascade.calibration import read_calibration
            except ImportError as error:
                raise ConfigurationError(
                    f'route "{route.name}": `calibration` lacks {error.name}: '
                    "pip install 'slipstream-gateway[semantic]'"
                ) from error
            try:
                found[route.name] = read_calibration(Path(settings.calibration), accept, settings.quality)
            except ConfigurationError as error:
                raise ConfigurationError(f'route "{route.name}": {error.message}') from error
    return found


def speculate(inner: Backend, settings: AnsweringPolicy, site: Site) -> Backend:
    """The stage around the target. Raises: ConfigurationError."""
    match settings:
        case CascadePolicy():
            draft = draft_pool(site)
            from policies.speculation.cascade.stage import Cascade

            return Cascade(inner, draft, _acceptance(draft, settings, site))
        case RacePolicy():
            from policies.speculation.race import Race

            admission = site.parts.admission
            gate = admission.gates.get(site.route.name) if admission is not None else None
            clock, draft = site.parts.clock, draft_pool(site)
            return Race(inner, draft, settings, clock, gate.is_calm) if gate else Race(inner, draft, settings, clock)
        case AutoPolicy():
            from gateway.assembly.auto import choose_way

            return choose_way(inner, settings, site, None if settings.draft is None else draft_pool(site))
        case _:
            assert_never(settings)


def mirror(inner: Backend, settings: MirrorPolicy, site: Site) -> Backend:
    """The stage that copies calls to a candidate."""
    from policies.cache.semantic.learning.comparators import Comparison
    from policies.cache.semantic.settings import EncoderPolicy
    from policies.mirror.preference import PreferenceJudge
    from policies.mirror.stage import Mirror

    parts, route = site.parts, site.route
    assert route.candidate is not None, "the route asks for it"
    assert parts.semantics is not None, "a route asks for its encoder"
    random = Random(parts.seed)
    judge = None
    if settings.judge is not None:
        asked = site.stacks[settings.judge.route]
        judge = PreferenceJudge(asked.backend, asked.timeouts, settings.judge, parts.clock, random)
    comparison = Comparison(parts.semantics.encoder(EncoderPolicy(), parts.leaves), None)
    candidate = build_pool(side_route(route, route.candidate, "candidate"), parts)
    stage = Mirror(inner, candidate, settings, comparison, judge, parts.clock, random, route=route.name)
    before = parts.mirrors.get(route.name)
    if before is not None and before.policy == settings:
        stage.take_over(before)
    return stage


def mirrors_of(previous: Runtime | None) -> dict[str, Mirror]:
    """The mirrors of a runtime, by their routes' names: what they have found out outlives a reload."""
    stacks = previous.stacks.built() if previous is not None else ()
    mirrored = [stack for stack in stacks if stack.policy.mirror is not None]
    if not mirrored:
        return {}
    from policies.mirror.stage import Mirror

    return {stack.policy.name: stage for stack in mirrored if (stage := stack.stage(Mirror)) is not None}


def judges_of_mirror(settings: MirrorPolicy) -> tuple[str, ...]:
    """The routes whose stacks a mirror asks."""
    return (settings.judge.route,) if settings.judge is not None else ()


def _acceptance(draft: Backend, settings: CascadePolicy, site: Site) -> DraftAcceptance:
    from policies.speculation.cascade.by_answer import ByAnswer
    from policies.speculation.cascade.judging import ByLogprob, ByVerifier

    calibrations: Mapping[str, Calibration] = site.parts.calibrations
    clock = site.parts.clock
    calibration = calibrations[site.route.name]
    chosen = calibration.threshold(settings.quality)
    assert chosen is not None, "read_calibration has looked"
    if settings.accept == "logprob":
        return ByAnswer(draft, ByLogprob(chosen.score), threshold=chosen.score, clock=clock)
    if settings.verifier is not None:
        asked = site.stacks[settings.verifier.route]
        verifier = ByVerifier(asked.backend, asked.timeouts, settings.verifier, clock)
        return ByAnswer(draft, verifier, threshold=chosen.score, clock=clock)
    from policies.cache.semantic.settings import EncoderPolicy
    from policies.speculation.cascade.by_prompt import ByPrompt

    semantics = site.parts.semantics
    assert semantics is not None, "a route asks for its encoder"
    encoder = semantics.encoder(EncoderPolicy(), site.parts.leaves)
    try:
        return ByPrompt(draft, calibration, threshold=chosen.score, encoder=encoder, clock=clock)
    except ValueError as error:
        raise ConfigurationError(
            f"{settings.calibration} is damaged: write it anew with `slipstream calibrate`"
        ) from error
