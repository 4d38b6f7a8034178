"""One route's conditions, compiled, and an index over those of many: by key, tenant, path and header field.

Asked by `match.py`, which sees to the models. A thousand routes for the same model that differ by tenant cost a look-up
and not a thousand tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Protocol

from policies.matching.globs import compiled, is_glob
from policies.schema import RoutePolicy

Fields = Sequence[tuple[bytes, bytes]]
"""HTTP fields, names in lower case."""

_FEW = 4
"""Up to so many rules are tried one after the other, without an index."""
_MAX_FILED = 256
"""The most combinations of its keys, tenants, paths and fields under which one rule is put into the index."""


def below_root(path: str) -> str:
    """A path, or a glob over paths, without the API's root: `/v1/models` and `/models` are the same."""
    rest = path.removeprefix("/v1")
    return path if rest == path or rest[:1] not in ("", "/", "*") else rest or "/"


class Rule:
    """One route's conditions except the model's; `order` is the route's place in the policy."""

    __slots__ = ("_headers", "_keys", "_path", "_tenants", "is_plain", "order", "route")

    def __init__(self, order: int, route: RoutePolicy) -> None:
        match = route.match
        self.order = order
        self.route = route
        self._path = compiled(below_root(path) for path in match.paths)
        self._keys = frozenset(match.keys) if match.keys else None
        self._tenants = frozenset(match.tenants) if match.tenants else None
        self._headers = [(name.lower().encode(), value_test(glob)) for name, glob in match.headers.items()]
        self.is_plain = not (match.paths or match.headers or match.keys or match.tenants)

    def holds(self, path: str, headers: Fields, key: str, tenant: str) -> bool:
        """Whether all of them are met."""
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


class Rules(Protocol):
    """Rules in their order, indexed for look-ups."""

    def first(self, path: str, headers: Fields, key: str, tenant: str, before: int) -> Rule | None:
        """The first rule that holds, if its `order` is lower than `before`."""

    def candidates(self, path: str, headers: Fields, key: str, tenant: str) -> Iterator[Rule]:
        """Every rule that may hold, as far as it can be told by looking up."""

    def most_tried(self) -> int:
        """How many rules are tried for one call at most, of those that are filed in one place."""


def index_rules(rules: Iterable[Rule]) -> Rules:
    """An index of rules that are given in their order."""
    return _index([(rule, _MAX_FILED) for rule in rules], _DIMENSIONS)


def value_test(glob: str) -> Callable[[bytes], object]:
    """A test for the value of a header field."""
    if not is_glob(glob):
        return glob.encode().__eq__
    pattern = re.compile(translate(glob))
    return lambda value: pattern.match(value.decode("utf-8", "replace"))


class _Few:
    """Rules that are tried in turn."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)

    def first(self, path: str, headers: Fields, key: str, tenant: str, before: int) -> Rule | None:
        for rule in self._rules:
            if rule.order >= before:
                return None
            if rule.is_plain or rule.holds(path, headers, key, tenant):
                return rule
        return None

    def candidates(self, path: str, headers: Fields, key: str, tenant: str) -> Iterator[Rule]:
        return iter(self._rules)

    def most_tried(self) -> int:
        return next((tried for tried, rule in enumerate(self._rules, 1) if rule.is_plain), len(self._rules))


_Wanted = Callable[[Rule], Sequence[Hashable]]
"""The exact values that a rule wants of something; empty where it wants none, or has globs."""
_Has = Callable[[str, Fields, str, str], Iterable[Hashable]]
"""The values that a call has there, of its path, headers, key and tenant."""


class _Split:
    """Rules by the value that they want, and those that want none."""

    __slots__ = ("_by_value", "_has", "_others")

    def __init__(self, has: _Has, by_value: Mapping[Hashable, Rules], others: Rules) -> None:
        self._has = has
        self._by_value = by_value
        self._others = others

    def first(self, path: str, headers: Fields, key: str, tenant: str, before: int) -> Rule | None:
        best = self._others.first(path, headers, key, tenant, before)
        for value in self._has(path, headers, key, tenant):
            rules = self._by_value.get(value)
            if rules is not None:
                earlier = rules.first(path, headers, key, tenant, before if best is None else best.order)
                best = earlier or best
        return best

    def candidates(self, path: str, headers: Fields, key: str, tenant: str) -> Iterator[Rule]:
        for value in self._has(path, headers, key, tenant):
            rules = self._by_value.get(value)
            if rules is not None:
                yield from rules.candidates(path, headers, key, tenant)
        yield from self._others.candidates(path, headers, key, tenant)

    def most_tried(self) -> int:
        return max(self._others.most_tried(), *(rules.most_tried() for rules in self._by_value.values()))


def _index(rules: Sequence[tuple[Rule, int]], dimensions: Sequence[tuple[_Wanted, _Has]]) -> Rules:
    """`rules`: each with the number of places under which it may still be filed."""
    if len(rules) <= _FEW or not dimensions:
        return _Few([rule for rule, _ in rules])
    (wanted, has), *further = dimensions
    by_value: dict[Hashable, list[tuple[Rule, int]]] = {}
    others: list[tuple[Rule, int]] = []
    for rule, places in rules:
        values = dict.fromkeys(wanted(rule))
        if not values or len(values) > places:
            others.append((rule, places))
        for value in values if len(values) <= places else ():
            by_value.setdefault(value, []).append((rule, places // len(values)))
    if not by_value:
        return _index(others, further)
    return _Split(has, {value: _index(group, further) for value, group in by_value.items()}, _index(others, further))


def _wanted_paths(rule: Rule) -> Sequence[str]:
    paths = rule.route.match.paths
    return () if any(is_glob(path) for path in paths) else [below_root(path) for path in paths]


def _wanted_field(rule: Rule) -> Sequence[tuple[bytes, bytes]]:
    """One of the fields that it wants, if one is wanted word by word."""
    exact = [(name, value) for name, value in rule.route.match.headers.items() if not is_glob(value)]
    return [(name.lower().encode(), value.encode()) for name, value in exact[:1]]


_DIMENSIONS: Sequence[tuple[_Wanted, _Has]] = (
    (lambda rule: rule.route.match.keys, lambda path, headers, key, tenant: (key,)),
    (lambda rule: rule.route.match.tenants, lambda path, headers, key, tenant: (tenant,)),
    (_wanted_paths, lambda path, headers, key, tenant: (path,)),
    (_wanted_field, lambda path, headers, key, tenant: headers),
)
