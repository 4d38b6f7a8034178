"""Whether the names in a policy file meet. Looked at in the plain data, so that any other problem is no obstacle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from policies.policy_file.locate import Document, Place, Problem
from policies.policy_file.problems import short_value, unknown_name

_MAX_CYCLES = 20
_JUDGE_ROUTE = ("cache", "semantic", "judge", "route")
_DEGRADE_TO = ("admission", "degrade_to")
_DRAFT = ("speculative", "draft")
_CANDIDATE = ("mirror", "to")
_MIRROR_JUDGE = ("mirror", "judge", "route")
_VERIFIER_ROUTE = ("speculative", "verifier", "route")
_ELSEWHERE = ("speculative", "elsewhere")
_ASKED = {"judge": "judges", "verifier": "verifiers", "elsewhere": "other routes"}
_ENCODER_BACKEND = ("cache", "semantic", "encoder", "backend")


@dataclass(frozen=True, slots=True)
class _Named:
    """A name and where it stands."""

    name: str
    place: Place


def check_references(document: Document, source: str) -> Iterator[Problem]:
    """Names given twice, names that nothing bears, and fallbacks that lead back to themselves.

    `source` is the file that was asked for.
    """
    routes = _sections(document, ("routes",))
    keys = _sections(document, ("keys",))
    route_names = [named for place in routes for named in _texts(document, (*place, "name"))]
    key_names = [named for place in keys for named in _texts(document, (*place, "name"))]
    tenants = {named.name for place in keys for named in _texts(document, (*place, "tenant"))} | {"default"}
    backends = document.value(("backends",))
    known_backends = list(backends) if isinstance(backends, dict) else []
    refs = [
        named
        for place in routes
        for part in _sections(document, (*place, "backends"))
        for named in _texts(document, (*part, "ref"))
    ]
    fallbacks = [named for place in routes for named in _texts(document, (*place, "fallbacks", "routes"))]
    degraded = [named for place in routes for named in _texts(document, (*place, *_DEGRADE_TO))]
    judges = [named for place in routes for named in _texts(document, (*place, *_JUDGE_ROUTE))]
    judges += _texts(document, ("defaults", *_JUDGE_ROUTE))
    encoders = [named for place in routes for named in _texts(document, (*place, *_ENCODER_BACKEND))]
    encoders += _texts(document, ("defaults", *_ENCODER_BACKEND))
    drafts = [named for place in routes for named in _texts(document, (*place, *_DRAFT))]
    drafts += [named for place in routes for named in _texts(document, (*place, *_CANDIDATE))]
    verifiers = [named for place in routes for named in _texts(document, (*place, *_VERIFIER_ROUTE))]
    verifiers += [named for place in routes for named in _texts(document, (*place, *_MIRROR_JUDGE))]
    verifiers += [named for place in routes for named in _texts(document, (*place, *_ELSEWHERE))]
    limits = [*_sections(document, ("limits",)), *_sections(document, ("budgets",))]
    rule_names = [named for place in limits for named in _texts(document, (*place, "name"))]
    cheaper = [named for place in limits for named in _texts(document, (*place, "fallback"))]
    allowed = [named for place in keys for named in _texts(document, (*place, "routes"))]
    matched_keys = [named for place in routes for named in _texts(document, (*place, "match", "keys"))]
    matched_tenants = [named for place in routes for named in _texts(document, (*place, "match", "tenants"))]
    yield from _twice("route", route_names, document, source)
    yield from _twice("key", key_names, document, source)
    yield from _twice("rule", rule_names, document, source)
    yield from _dangling("backend", [*refs, *encoders, *drafts], known_backends, document)
    named_routes = [*fallbacks, *degraded, *judges, *verifiers, *cheaper, *allowed]
    yield from _dangling("route", named_routes, [named.name for named in route_names], document)
    if document.value(("stores", "keys")) is None:
        # With a key store there are others than the file's, which come and go.
        yield from _dangling("key", matched_keys, [named.name for named in key_names], document)
        yield from _dangling("tenant", matched_tenants, sorted(tenants), document)
    yield from _cycles(routes, document)


def _sections(document: Document, place: Place) -> list[Place]:
    """The places of a list's items."""
    value = document.value(place)
    return [(*place, index) for index in range(len(value))] if isinstance(value, list) else []


def _texts(document: Document, place: Place) -> list[_Named]:
    """A text, or the texts in a list; whatever else stands there has a problem of its own."""
    value = document.value(place)
    if isinstance(value, str):
        return [_Named(value, place)]
    items = value if isinstance(value, list) else []
    return [_Named(item, (*place, index)) for index, item in enumerate(items) if isinstance(item, str)]


def _twice(what: str, names: Iterable[_Named], document: Document, source: str) -> Iterable[Problem]:
    first: dict[str, Place] = {}
    for named in names:
        if named.name in first:
            place = first[named.name]
            is_here = document.source_of(place) == document.source_of(named.place)
            at = f"line {document.lines[place]}" if is_here else document.position(place, source)
            yield document.problem(named.place, f"the {what} name {short_value(named.name)} is taken, see {at}")
        else:
            first[named.name] = named.place


def _dangling(what: str, names: Iterable[_Named], known: list[str], document: Document) -> Iterable[Problem]:
    bearers = frozenset(known)
    for named in names:
        if named.name not in bearers:
            yield document.problem(named.place, unknown_name(what, named.name, known))


def _judge_of(document: Document, route: Place) -> list[_Named]:
    """The judge of a route: its own, or that of the defaults where it has no cache section of its own."""
    section = document.value(route)
    has_own = isinstance(section, dict) and "cache" in section
    return _texts(document, (*route, *_JUDGE_ROUTE) if has_own else ("defaults", *_JUDGE_ROUTE))


def _cycles(routes: list[Place], document: Document) -> Iterable[Problem]:
    graph: dict[str, dict[str, Place]] = {}
    for place in routes:
        for route in _texts(document, (*place, "name")):
            targets = graph.setdefault(route.name, {})
            targets.update((named.name, named.place) for named in _judge_of(document, place))
            targets.update((named.name, named.place) for named in _texts(document, (*place, *_VERIFIER_ROUTE)))
            targets.update((named.name, named.place) for named in _texts(document, (*place, *_MIRROR_JUDGE)))
            targets.update((named.name, named.place) for named in _texts(document, (*place, *_ELSEWHERE)))
            targets.update((named.name, named.place) for named in _texts(document, (*place, *_DEGRADE_TO)))
            targets.update((named.name, named.place) for named in _texts(document, (*place, "fallbacks", "routes")))
    for _ in range(_MAX_CYCLES):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            # Each name in the list is a fallback of the next one.
            path = list(reversed(error.args[1]))
            last_place = graph[path[-2]].pop(path[-1])
            what = next((what for word, what in _ASKED.items() if word in last_place), "fallbacks")
            yield document.problem(last_place, f"{what} lead back: {' -> '.join(path)}")
        else:
            return
