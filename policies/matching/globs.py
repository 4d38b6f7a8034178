"""Globs over model names, indexed by what stands before their first wildcard and after their last one.

Which of thousands of globs cover a name costs a look-up for each length that such a beginning or end has, and not one
test for each glob. Globs that begin and end with a wildcard are the exception: each is tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import Generic, TypeVar

T = TypeVar("T")

_SIGNS = "*?["
_LAST_SIGN = re.compile(r"[*?\[\]]")
_FEW = 4
"""Globs of the same beginning that are simply tried one after the other."""

Test = Callable[[str], object]
"""Gives a true value for a name that a glob covers."""


def is_glob(text: str) -> bool:
    """Whether it has wildcards."""
    return any(sign in text for sign in _SIGNS)


def compiled(globs: Iterable[str]) -> Test | None:
    """One test for all of them: a true value where any matches. None for no globs."""
    pattern = "|".join(translate(glob) for glob in globs)
    return re.compile(pattern).match if pattern else None


def literal_ends(glob: str) -> tuple[str, str]:
    """What every name that the glob covers begins with, and what it ends with; at least one wildcard is between."""
    first = min(place for sign in _SIGNS if (place := glob.find(sign)) >= 0)
    last = max(match.end() for match in _LAST_SIGN.finditer(glob))
    return glob[:first], glob[last:]


def allows(globs: Sequence[str], model: str) -> bool:
    """Whether a model is covered by at least one of the globs. No model ("") is covered only by "*"."""
    if "*" in globs:
        return True
    return model != "" and (model in globs or any(fnmatchcase(model, glob) for glob in globs))


class GlobMap(Generic[T]):
    """Values by glob. Immutable; empty globs and names are not for it."""

    def __init__(self, values: Mapping[str, T]) -> None:
        """`values`: by text that has wildcards."""
        by_prefix: dict[str, list[tuple[str, Test | None, T]]] = {}
        for glob, value in values.items():
            prefix, suffix = literal_ends(glob)
            by_prefix.setdefault(prefix, []).append((suffix, _test_of(glob, prefix, suffix), value))
        self._by_prefix = {prefix: _suffixes(group) for prefix, group in by_prefix.items()}
        self._lengths = tuple(sorted({len(prefix) for prefix in by_prefix}))

    def most_tried(self) -> int:
        """How many globs are tried for one name at most, of those that a look-up cannot tell apart."""
        groups = (entries for _, by_suffix in self._by_prefix.values() for entries in by_suffix.values())
        return max((len(entries) for entries in groups), default=0)

    def of(self, name: str) -> Sequence[T]:
        """The values of the globs that cover a name, in no order."""
        size = len(name)
        covering: list[T] = []
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
                            covering.append(value)
        return covering


class ModelSet:
    """The models that a list of globs covers. Equal to another one of the same list."""

    __slots__ = ("_exact", "_globs", "_has_all", "globs")

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._has_all = "*" in globs
        self._exact = frozenset(globs)
        self._globs = GlobMap({glob: None for glob in globs if is_glob(glob)})

    def covers(self, model: str) -> bool:
        """Whether at least one of the globs covers a model. No model ("") is covered only by "*"."""
        if self._has_all:
            return True
        return model != "" and (model in self._exact or bool(self._globs.of(model)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelSet) and self.globs == other.globs

    def __hash__(self) -> int:
        return hash(self.globs)


_Suffixes = tuple[tuple[int, ...], dict[str, tuple[tuple[Test | None, T], ...]]]


def _test_of(glob: str, prefix: str, suffix: str) -> Test | None:
    """What is left to be tested of a name that has the glob's beginning; None for nothing."""
    if glob == prefix + "*":
        return None
    if glob == f"{prefix}*{suffix}":
        least = len(prefix) + len(suffix)
        return lambda name: len(name) >= least and name.endswith(suffix)
    return re.compile(translate(glob)).match


def _suffixes(group: Sequence[tuple[str, Test | None, T]]) -> _Suffixes[T]:
    """Of globs with the same beginning: the lengths of their ends, and by end what is to be tried."""
    by_suffix: dict[str, list[tuple[Test | None, T]]] = {}
    for suffix, test, value in group:
        by_suffix.setdefault(suffix if len(group) > _FEW else "", []).append((test, value))
    lengths = tuple(sorted({len(suffix) for suffix in by_suffix}))
    return lengths, {suffix: tuple(entries) for suffix, entries in by_suffix.items()}
