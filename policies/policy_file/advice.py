"""What is allowed in a policy but can hardly be meant: shown as warnings by `slipstream check`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from policies.matching.conditions import below_root
from policies.matching.route_matcher import RouteMatcher
from policies.matching.settings import MatchPolicy
from policies.schema import Policy
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.settings import CascadePolicy

_MAX_COMPARED = 200
"""With how many routes that have something in common a route is compared: the work stays linear in a long file."""
_MANY_TRIED = 100
"""Conditions looked at one after the other for one call, from which on that is much of what the call costs."""


def find_warnings(policy: Policy) -> list[str]:
    """One sentence for each thing to look at."""
    matcher = RouteMatcher(policy.routes)
    return [*_unreachable_routes(policy, matcher), *_slow(matcher), *_unused(policy), *_without_weight(policy)]


def _unreachable_routes(policy: Policy, matcher: RouteMatcher) -> Iterable[str]:
    for index, route in enumerate(policy.routes):
        if route.match.internal:
            continue
        rivals = islice(matcher.rivals(route.match), _MAX_COMPARED)
        takers = [place for place, rival in rivals if place < index and _takes_all(rival.match, route.match)]
        if takers:
            yield (
                f'routes[{index}]: route "{route.name}" is never reached: "{policy.routes[min(takers)].name}", above '
                "it, takes every call that it would take. Move it up, or narrow the other's match"
            )


def _slow(matcher: RouteMatcher) -> Iterable[str]:
    tried = matcher.most_tried()
    if tried > _MANY_TRIED:
        yield (
            f"routes: for some calls {tried} routes are tried one after the other, which makes every one of these "
            "calls dearer: they differ only by globs that begin and end with a wildcard, or by globs over paths and "
            "header values. Give them a key, a tenant, a whole path or value, or a model's beginning to be told by"
        )


def _unused(policy: Policy) -> Iterable[str]:
    named = {name for route in policy.routes if route.fallbacks is not None for name in route.fallbacks.routes}
    named |= {route.admission.degrade_to for route in policy.routes if route.admission and route.admission.degrade_to}
    semantics = [route.cache.semantic for route in policy.routes if route.cache is not None]
    named |= {semantic.judge.route for semantic in semantics if semantic is not None and semantic.judge is not None}
    speculations = [route.speculative for route in policy.routes if route.speculative is not None]
    named |= {name for each in speculations if isinstance(each, AutoPolicy) for name in each.elsewhere}
    named |= {each.verifier.route for each in speculations if isinstance(each, CascadePolicy) and each.verifier}
    mirrors = [route.mirror for route in policy.routes if route.mirror is not None]
    named |= {each.judge.route for each in mirrors if each.judge is not None}
    named |= {budget.fallback for budget in policy.budgets if budget.fallback is not None}
    for index, route in enumerate(policy.routes):
        if route.match.internal and route.name not in named:
            yield f'routes[{index}]: route "{route.name}" is internal, and no other route names it'
    refs = {part.ref for route in policy.routes for part in route.backends}
    refs |= {semantic.encoder.backend for semantic in semantics if semantic is not None and semantic.encoder.backend}
    refs |= {route.draft.ref for route in policy.routes if route.draft is not None} | {each.to for each in mirrors}
    for name in policy.backends:
        if name not in refs:
            yield f"backends.{name}: no route asks this backend"


def _without_weight(policy: Policy) -> Iterable[str]:
    for index, route in enumerate(policy.routes):
        if all(part.weight == 0 for part in route.backends):
            yield f'routes[{index}].backends: route "{route.name}" cannot answer: every backend has weight 0'


def _takes_all(earlier: MatchPolicy, later: MatchPolicy) -> bool:
    """Whether every call that `later` takes, `earlier` takes too. Says False where that is hard to tell."""
    paths = [below_root(path) for path in earlier.paths]
    later_headers = {name.lower(): glob for name, glob in later.headers.items()}
    return (
        _covers(earlier.models, later.models)
        and _covers(paths, [below_root(path) for path in later.paths])
        and all(later_headers.get(name.lower()) == glob for name, glob in earlier.headers.items())
        and _includes(earlier.keys, later.keys)
        and _includes(earlier.tenants, later.tenants)
    )


def _covers(earlier: Sequence[str], later: Sequence[str]) -> bool:
    if not earlier or "*" in earlier:
        return True
    return bool(later) and all(any(_covers_glob(wide, narrow) for wide in earlier) for narrow in later)


def _covers_glob(wide: str, narrow: str) -> bool:
    # A glob whose only wildcard is `*` covers another if it matches its text: `gpt-*` covers `gpt-4*`.
    return wide == narrow or (not any(sign in wide for sign in "?[") and fnmatchcase(narrow, wide))


def _includes(earlier: Sequence[str], later: Sequence[str]) -> bool:
    return not earlier or (bool(later) and set(later) <= set(earlier))
