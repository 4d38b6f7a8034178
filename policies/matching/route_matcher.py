"""Finds the route of a call: the first whose conditions are all met. Conditions are compiled when a policy is loaded.

Globs are case-sensitive, and `*` also matches slashes. The cost of a look-up depends on how many routes could take the
call's model, and hardly on how many routes there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from policies.matching.conditions import Fields, Rule, Rules, below_root, index_rules, value_test
from policies.matching.globs import GlobMap, allows, is_glob
from policies.matching.settings import MatchPolicy
from policies.schema import RoutePolicy

_NO_NAME = "\0"
"""A name that no key, tenant, path or model has."""


@dataclass(frozen=True, slots=True)
class UnmetCondition:
    """A condition that a call does not meet."""

    condition: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """Whether a route can take a call. `holds` without `is_chosen` means that an earlier route takes it."""

    route: str
    is_chosen: bool
    failures: tuple[UnmetCondition, ...]

    @property
    def holds(self) -> bool:
        """Whether every condition is met."""
        return not self.failures


class RouteMatcher:
    """The compiled routes of one policy. Immutable; its memory depends on the policy alone."""

    def __init__(self, routes: Sequence[RoutePolicy]) -> None:
        self._routes = tuple(routes)
        by_model: dict[str, list[Rule]] = {}
        by_glob: dict[str, list[Rule]] = {}
        for_any: list[Rule] = []
        self._end = self._first_by_glob = len(self._routes)
        for order, route in enumerate(self._routes):
            if route.match.internal:
                continue
            rule = Rule(order, route)
            models = dict.fromkeys(route.match.models)
            is_for_any = not models or "*" in models
            if is_for_any:
                for_any.append(rule)
            for model in models if not is_for_any else ():
                (by_glob if is_glob(model) else by_model).setdefault(model, []).append(rule)
            if is_for_any or any(is_glob(model) for model in models):
                self._first_by_glob = min(self._first_by_glob, order)
        self._by_model: dict[str, Rules] = {model: index_rules(rules) for model, rules in by_model.items()}
        self._of_glob: dict[str, Rules] = {glob: index_rules(rules) for glob, rules in by_glob.items()}
        self._by_glob = GlobMap(self._of_glob)
        self._for_any = index_rules(for_any)
        self._first_for_any = for_any[0].order if for_any else self._end
        self._unconditional = {
            model: rules[0].route
            for model, rules in by_model.items()
            if rules[0].is_plain and rules[0].order < self._first_by_glob
        }
        """The routes of models whose first route takes every call: nothing but the model is looked at."""

    def match(self, *, model: str, path: str, headers: Fields, key: str, tenant: str) -> RoutePolicy | None:
        """The first route that takes the call, or None. `path` is below the API root; `key` and `tenant` are names."""
        if (route := self._unconditional.get(model)) is not None:
            return route
        best = None
        before = self._end
        if model:
            named = self._by_model.get(model)
            if named is not None and (best := named.first(path, headers, key, tenant, before)) is not None:
                before = best.order
                if before < self._first_by_glob:
                    return best.route
            for rules in self._by_glob.of(model) if self._of_glob else ():
                earlier = rules.first(path, headers, key, tenant, before)
                if earlier is not None:
                    best, before = earlier, earlier.order
        if self._first_for_any < before:
            best = self._for_any.first(path, headers, key, tenant, before) or best
        return best.route if best is not None else None

    def rivals(self, match: MatchPolicy) -> Iterator[tuple[int, RoutePolicy]]:
        """Routes and their positions, which include every route that takes all the calls that `match` takes."""
        paths = [below_root(path) for path in match.paths] or [_NO_NAME]
        headers = [(name.lower().encode(), glob.encode()) for name, glob in match.headers.items()]
        model = match.models[0] if match.models else _NO_NAME
        found = [self._for_any, *self._by_glob.of(model)]
        found += [rules for rules in (self._by_model.get(model), self._of_glob.get(model)) if rules is not None]
        for rules in found:
            for rule in rules.candidates(paths[0], headers, (*match.keys, _NO_NAME)[0], (*match.tenants, _NO_NAME)[0]):
                yield rule.order, rule.route

    def most_tried(self) -> int:
        """How many routes or globs are tried at most for one call, because no look-up distinguishes them."""
        all_rules = (self._for_any, *self._by_model.values(), *self._of_glob.values())
        return max(self._by_glob.most_tried(), *(rules.most_tried() for rules in all_rules))

    def explain(self, *, model: str, path: str, headers: Fields, key: str, tenant: str) -> list[RouteVerdict]:
        """For each route, in order, the conditions that the call does not meet. The arguments are those of `match`."""
        chosen = self.match(model=model, path=path, headers=headers, key=key, tenant=tenant)
        return [
            RouteVerdict(
                route.name,
                route is chosen,
                tuple(_failures(route.match, model=model, path=path, headers=headers, key=key, tenant=tenant)),
            )
            for route in self._routes
        ]


def _failures(
    match: MatchPolicy, *, model: str, path: str, headers: Fields, key: str, tenant: str
) -> Iterable[UnmetCondition]:
    if match.internal:
        yield UnmetCondition("internal", "only a fallback of other routes", "")
    if match.models and not allows(match.models, model):
        yield UnmetCondition("models", ", ".join(match.models), model)
    if match.paths and not any(fnmatchcase(path, below_root(glob)) for glob in match.paths):
        yield UnmetCondition("paths", ", ".join(match.paths), path)
    for name, glob in match.headers.items():
        values = [value for field, value in headers if field == name.lower().encode()]
        if not any(value_test(glob)(value) for value in values):
            yield UnmetCondition(
                f"headers.{name}", glob, ", ".join(value.decode("utf-8", "replace") for value in values)
            )
    if match.keys and key not in match.keys:
        yield UnmetCondition("keys", ", ".join(match.keys), key)
    if match.tenants and tenant not in match.tenants:
        yield UnmetCondition("tenants", ", ".join(match.tenants), tenant)
