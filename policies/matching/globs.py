"""Globs over model names, indexed by the text before their first wildcard and after their last one.

To find which of thousands of globs match a name takes one look-up for each length of these prefixes and suffixes, not
one test for each glob. Globs that begin and end with a wildcard are the exception: each one is tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import Generic, TypeVar

T = TypeVar("T")

_WILDCARDS = "*?["
_LAST_WILDCARD = re.compile(r"[*?\[\]]")
_MAX_UNINDEXED = 4
"""So many globs with the same prefix are tried one after the other; only more of them are indexed by suffix."""

Test = Callable[[str], object]
"""Returns a true value for a name that matches."""


def is_glob(text: str) -> bool:
    """Whether it has wildcards."""
    return any(wildcard in text for wildcard in _WILDCARDS)


def compiled(globs: Iterable[str]) -> Test | None:
    """One test for all globs, true if any of them matches; None without globs."""
    pattern = "|".join(translate(glob) for glob in globs)
    return re.compile(pattern).match if pattern else None


def literal_ends(glob: str) -> tuple[str, str]:
    """The literal prefix and suffix of a glob with at least one wildcard, which every matching name has."""
    first = min(position for wildcard in _WILDCARDS if (position := glob.find(wildcard)) >= 0)
    last = max(match.end() for match in _LAST_WILDCARD.finditer(glob))
    return glob[:first], glob[last:]


def allows(globs: Sequence[str], model: str) -> bool:
    """Whether at least one of the globs matches a model. A call without a model ("") matches only "*"."""
    if "*" in globs:
        return True
    return model != "" and (model in globs or any(fnmatchcase(model, glob) for glob in globs))


class GlobMap(Generic[T]):
    """Values by glob. Immutable; globs and names must not be empty."""

    def __init__(self, values: Mapping[str, T]) -> None:
        """`values`: by globs with at least one wildcard."""
        by_prefix: dict[str, list[tuple[str, Test | None, T]]] = {}
        for glob, value in values.items():
            prefix, suffix = literal_ends(glob)
            by_prefix.setdefault(prefix, []).append((suffix, _test_of(glob, prefix, suffix), value))
        self._by_prefix = {prefix: _suffixes(group) for prefix, group in by_prefix.items()}
        self._lengths = tuple(sorted({len(prefix) for prefix in by_prefix}))

    def most_tried(self) -> int:
        """How many globs are tried at most for one name, because the look-ups cannot distinguish them."""
        groups = (entries for _, by_suffix in self._by_prefix.values() for entries in by_suffix.values())
        return max((len(entries) for entries in groups), default=0)

    def of(self, name: str) -> Sequence[T]:
        """The values of the globs that match a name, in no order."""
        size = len(name)
        matching: list[T] = []
        for length in self._lengths:
            if length > size:
                break
            found = self._by_prefix.get(name[:length])
            if found is not None:
                lengths, by_suffix = found
                for end in lengths:
                    if length + end > size:
                        break
                    for test, value in by_suffix.get(name[size - end :], ()):
                        if test is None or test(name):
                            matching.append(value)
        return matching


class ModelSet:
    """The models that match a list of globs. Two sets are equal if their lists are."""

    __slots__ = ("_exact", "_globs", "_has_all", "globs")

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._has_all = "*" in globs
        self._exact = frozenset(globs)
        self._globs = GlobMap({glob: None for glob in globs if is_glob(glob)})

    def covers(self, model: str) -> bool:
        """Whether at least one of the globs matches a model. A call without a model ("") matches only "*"."""
        if self._has_all:
            return True
        return model != "" and (model in self._exact or bool(self._globs.of(model)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelSet) and self.globs == other.globs

    def __hash__(self) -> int:
        return hash(self.globs)


_Suffixes = tuple[tuple[int, ...], dict[str, tuple[tuple[Test | None, T], ...]]]


def _test_of(glob: str, prefix: str, suffix: str) -> Test | None:
    """The test that a name with the glob's prefix still has to pass; None if there is none."""
    if glob == prefix + "*":
        return None
    if glob == f"{prefix}*{suffix}":
        least = len(prefix) + len(suffix)
        return lambda name: len(name) >= least and name.endswith(suffix)
    return re.compile(translate(glob)).match


def _suffixes(group: Sequence[tuple[str, Test | None, T]]) -> _Suffixes[T]:
    """For globs with the same prefix: the lengths of their suffixes, and the tests and values by suffix."""
    by_suffix: dict[str, list[tuple[Test | None, T]]] = {}
    for suffix, test, value in group:
        by_suffix.setdefault(suffix if len(group) > _MAX_UNINDEXED else "", []).append((test, value))
    lengths = tuple(sorted({len(suffix) for suffix in by_suffix}))
    return lengths, {suffix: tuple(entries) for suffix, entries in by_suffix.items()}
