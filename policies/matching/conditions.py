"""The compiled conditions of a route except its models, and an index of many: by key, tenant, path and header field.

`route_matcher.py` uses it for the routes of a model. A thousand routes for one model that differ by their tenant cost
one look-up, not a thousand tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Protocol

from policies.matching.globs import compiled, is_glob
from policies.schema import RoutePolicy

Fields = Sequence[tuple[bytes, bytes]]
"""HTTP fields with names in lower case."""

_MAX_UNINDEXED = 4
"""So many rules are tried one after the other; only more of them are indexed."""
_MAX_ENTRIES = 256
"""At most so many entries of an index are made for one rule, one for each combination of its exact values."""


def below_root(path: str) -> str:
    """A path, or a glob of paths, without the API's root: `/v1/models` becomes `/models`."""
    rest = path.removeprefix("/v1")
    return path if rest == path or rest[:1] not in ("", "/", "*") else rest or "/"


class Rule:
    """The conditions of a route except its models; `order` is the route's position in the policy."""

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
        """Whether a call meets all conditions."""
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
    """Rules in their order, possibly indexed."""

    def first(self, path: str, headers: Fields, key: str, tenant: str, before: int) -> Rule | None:
        """The first rule that holds, if its `order` is lower than `before`."""

    def candidates(self, path: str, headers: Fields, key: str, tenant: str) -> Iterator[Rule]:
        """Every rule that the look-ups do not exclude."""

    def most_tried(self) -> int:
        """How many rules are tried at most for one call, because they have the same entry of the index."""


def index_rules(rules: Iterable[Rule]) -> Rules:
    """Index rules, which are given in their order."""
    return _index([(rule, _MAX_ENTRIES) for rule in rules], _DIMENSIONS)


def value_test(glob: str) -> Callable[[bytes], object]:
    """A test for the value of a header field."""
    if not is_glob(glob):
        return glob.encode().__eq__
    pattern = re.compile(translate(glob))
    return lambda value: pattern.match(value.decode("utf-8", "replace"))


class _RuleList:
    """Rules that are tried one after the other."""

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


_ValuesOfRule = Callable[[Rule], Sequence[Hashable]]
"""The exact values of which a rule requires one; empty if it requires none or has globs."""
_ValuesOfCall = Callable[[str, Fields, str, str], Iterable[Hashable]]
"""The values of a call, given its path, headers, key and tenant."""


class _RuleIndex:
    """Rules by the exact value that they require, and those that require none."""

    __slots__ = ("_by_value", "_others", "_values_of_call")

    def __init__(self, values_of_call: _ValuesOfCall, by_value: Mapping[Hashable, Rules], others: Rules) -> None:
        self._values_of_call = values_of_call
        self._by_value = by_value
        self._others = others

    def first(self, path: str, headers: Fields, key: str, tenant: str, before: int) -> Rule | None:
        best = self._others.first(path, headers, key, tenant, before)
        for value in self._values_of_call(path, headers, key, tenant):
            rules = self._by_value.get(value)
            if rules is not None:
                earlier = rules.first(path, headers, key, tenant, before if best is None else best.order)
                best = earlier or best
        return best

    def candidates(self, path: str, headers: Fields, key: str, tenant: str) -> Iterator[Rule]:
        for value in self._values_of_call(path, headers, key, tenant):
            rules = self._by_value.get(value)
            if rules is not None:
                yield from rules.candidates(path, headers, key, tenant)
        yield from self._others.candidates(path, headers, key, tenant)

    def most_tried(self) -> int:
        return max(self._others.most_tried(), *(rules.most_tried() for rules in self._by_value.values()))


def _index(rules: Sequence[tuple[Rule, int]], dimensions: Sequence[tuple[_ValuesOfRule, _ValuesOfCall]]) -> Rules:
    """`rules`: each with the number of entries that may still be made for it."""
    if len(rules) <= _MAX_UNINDEXED or not dimensions:
        return _RuleList([rule for rule, _ in rules])
    (values_of_rule, values_of_call), *further = dimensions
    by_value: dict[Hashable, list[tuple[Rule, int]]] = {}
    others: list[tuple[Rule, int]] = []
    for rule, max_entries in rules:
        values = dict.fromkeys(values_of_rule(rule))
        if not values or len(values) > max_entries:
            others.append((rule, max_entries))
        for value in values if len(values) <= max_entries else ():
            by_value.setdefault(value, []).append((rule, max_entries // len(values)))
    if not by_value:
        return _index(others, further)
    return _RuleIndex(
        values_of_call, {value: _index(group, further) for value, group in by_value.items()}, _index(others, further)
    )


def _exact_paths(rule: Rule) -> Sequence[str]:
    paths = rule.route.match.paths
    return () if any(is_glob(path) for path in paths) else [below_root(path) for path in paths]


def _exact_field(rule: Rule) -> Sequence[tuple[bytes, bytes]]:
    """The first field for which the rule requires an exact value."""
    exact = [(name, value) for name, value in rule.route.match.headers.items() if not is_glob(value)]
    return [(name.lower().encode(), value.encode()) for name, value in exact[:1]]


_DIMENSIONS: Sequence[tuple[_ValuesOfRule, _ValuesOfCall]] = (
    (lambda rule: rule.route.match.keys, lambda path, headers, key, tenant: (key,)),
    (lambda rule: rule.route.match.tenants, lambda path, headers, key, tenant: (tenant,)),
    (_exact_paths, lambda path, headers, key, tenant: (path,)),
    (_exact_field, lambda path, headers, key, tenant: headers),
)
