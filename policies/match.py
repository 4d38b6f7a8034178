"""Which route takes a call: the first whose conditions all hold. Conditions are compiled once, when a policy is loaded.

Globs are case-sensitive; `*` also runs across slashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate

from policies.schema import MatchPolicy, RoutePolicy

Fields = Sequence[tuple[bytes, bytes]]
"""HTTP fields, names in lower case."""


def is_glob(text: str) -> bool:
    """Whether it has wildcards."""
    return any(sign in text for sign in "*?[")


def allows(globs: Sequence[str], model: str) -> bool:
    """Whether a model is covered by at least one of the globs. No model ("") is covered only by "*"."""
    if "*" in globs:
        return True
    return model != "" and (model in globs or any(fnmatchcase(model, glob) for glob in globs))


def below_root(path: str) -> str:
    """A path, or a glob over paths, without the API's root: `/v1/models` and `/models` are the same."""
    rest = path.removeprefix("/v1")
    return path if rest == path or rest[:1] not in ("", "/", "*") else rest or "/"


@dataclass(frozen=True, slots=True)
class Failure:
    """A condition that a call did not meet."""

    condition: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a route made of a call. `holds` is True without `is_chosen` where an earlier route was first."""

    route: str
    is_chosen: bool
    failures: tuple[Failure, ...]

    @property
    def holds(self) -> bool:
        """Whether every condition is met."""
        return not self.failures


class RouteMatcher:
    """The routes of one policy, ready to be asked. Immutable; its memory depends on the policy alone."""

    def __init__(self, routes: Sequence[RoutePolicy]) -> None:
        self._routes = tuple(routes)
        rules = [_Rule(route) for route in routes if not route.match.internal]
        named = {model for rule in rules for model in rule.models if not is_glob(model)}
        # For a model that a policy names, the routes that take it are known beforehand.
        self._by_model = {model: tuple(rule for rule in rules if rule.takes_model(model)) for model in named}
        self._without_model = tuple(rule for rule in rules if rule.takes_model(""))
        self._for_others = tuple(rule for rule in rules if rule.model_glob is not None or rule.takes_model(""))

    def match(self, *, model: str, path: str, headers: Fields, key: str, tenant: str) -> RoutePolicy | None:
        """The first route that takes the call, or None. `path` is below the API root; `key` and `tenant` are names."""
        rules = self._by_model.get(model) if model else self._without_model
        if rules is not None:
            for rule in rules:
                if rule.is_plain or rule.holds(path, headers, key, tenant):
                    return rule.route
            return None
        for rule in self._for_others:
            glob = rule.model_glob
            if (glob is None or glob(model)) and (rule.is_plain or rule.holds(path, headers, key, tenant)):
                return rule.route
        return None

    def explain(self, *, model: str, path: str, headers: Fields, key: str, tenant: str) -> list[Verdict]:
        """For each route, in order, which conditions the call does not meet. Arguments as for `match`."""
        chosen = self.match(model=model, path=path, headers=headers, key=key, tenant=tenant)
        return [
            Verdict(
                route.name,
                route is chosen,
                tuple(_failures(route.match, model=model, path=path, headers=headers, key=key, tenant=tenant)),
            )
            for route in self._routes
        ]


class _Rule:
    """One route's conditions, compiled; None where the route has none of that sort."""

    __slots__ = ("_headers", "_keys", "_path", "_tenants", "is_plain", "model_glob", "models", "route")

    def __init__(self, route: RoutePolicy) -> None:
        match = route.match
        self.route = route
        self.models = match.models
        self.model_glob = None if "*" in match.models else _compiled(model for model in match.models if is_glob(model))
        self._path = _compiled(below_root(path) for path in match.paths)
        self._keys = frozenset(match.keys) if match.keys else None
        self._tenants = frozenset(match.tenants) if match.tenants else None
        self._headers = [(name.lower().encode(), _value_test(glob)) for name, glob in match.headers.items()]
        self.is_plain = not (match.paths or match.headers or match.keys or match.tenants)

    def takes_model(self, model: str) -> bool:
        return not self.models or allows(self.models, model)

    def holds(self, path: str, headers: Fields, key: str, tenant: str) -> bool:
        """Whether every condition but the model's is met."""
        if self._path is not None and not self._path(path):
            return False
        if self._keys is not None and key not in self._keys:
            return False
        if self._tenants is not None and tenant not in self._tenants:
            return False
        for name, test in self._headers:
            for field, value in headers:
                if field == name and test(value):
                    break
            else:
                return False
        return True


def _compiled(globs: Iterable[str]) -> Callable[[str], object] | None:
    """One test for all of them: a true value where any matches. None for no globs."""
    pattern = "|".join(translate(glob) for glob in globs)
    return re.compile(pattern).match if pattern else None


def _value_test(glob: str) -> Callable[[bytes], object]:
    if not is_glob(glob):
        return glob.encode().__eq__
    pattern = re.compile(translate(glob))
    return lambda value: pattern.match(value.decode("utf-8", "replace"))


def _failures(
    match: MatchPolicy, *, model: str, path: str, headers: Fields, key: str, tenant: str
) -> Iterable[Failure]:
    if match.internal:
        yield Failure("internal", "only a fallback of other routes", "")
    if match.models and not allows(match.models, model):
        yield Failure("models", ", ".join(match.models), model)
    if match.paths and not any(fnmatchcase(path, below_root(glob)) for glob in match.paths):
        yield Failure("paths", ", ".join(match.paths), path)
    for name, glob in match.headers.items():
        values = [value for field, value in headers if field == name.lower().encode()]
        if not any(_value_test(glob)(value) for value in values):
            yield Failure(f"headers.{name}", glob, ", ".join(value.decode("utf-8", "replace") for value in values))
    if match.keys and key not in match.keys:
        yield Failure("keys", ", ".join(match.keys), key)
    if match.tenants and tenant not in match.tenants:
        yield Failure("tenants", ", ".join(match.tenants), tenant)
