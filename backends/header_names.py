"""Which fields of a client a backend takes, by name and by glob: those, and no others, can change its answers.

A backend tells of them in its capabilities; whoever lets callers share an answer tells apart calls that differ in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

Fields = Sequence[tuple[bytes, bytes]]
"""HTTP fields, names in lower case."""

TRACE_HEADERS = frozenset(
    {
        *(b"traceparent", b"tracestate", b"b3", b"sentry-trace"),
        *(b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled", b"x-b3-flags"),
        *(b"x-datadog-trace-id", b"x-datadog-parent-id", b"x-datadog-sampling-priority", b"x-datadog-origin"),
        b"x-datadog-tags",
    }
)
"""They tell a server's tracing where a call belongs, and its model nothing: they travel, and part no calls."""

_GUARDED = re.compile(
    r"(?:proxy-)?authorization|.*api-key|.*auth-token|.*cookie2?|ocp-apim-.*|x-amz-.*|x-goog-.*|x-forwarded-.*"
    r"|openai-organization|openai-project"
)
"""Credentials, accounts and who the client is: no wildcard takes these."""


class HeaderNames:
    """Names of fields, in any case. Immutable."""

    __slots__ = ("_globs", "_is_every", "_is_listed", "_match", "_names", "_replaced", "_travelling")

    def __init__(self, names: Iterable[str] = (), *, replaced: Iterable[bytes] = (), is_every: bool = False) -> None:
        """`replaced` are fields that the backend sets itself: a client's of that name is not taken, nor one whose name
        differs from it only by `_` for `-`, which many servers take for the same. `is_every`: whatever its name.
        """
        listed = {name.lower() for name in names}
        self._is_every = is_every
        self._replaced = frozenset(map(_twin, replaced))
        self._globs = frozenset(name for name in listed if "*" in name)
        self._match = re.compile("|".join(map(translate, sorted(self._globs)))).match if self._globs else None
        self._is_listed = not is_every and not self._globs
        self._names = self._unreplaced(name.encode("latin-1") for name in listed - self._globs)
        self._travelling = self._names | self._unreplaced(TRACE_HEADERS)

    def taken(self, fields: Fields) -> list[tuple[bytes, bytes]]:
        """Those of a client's fields that can change an answer."""
        names = self._names
        return [field for field in fields if field[0] in names] if self._is_listed else self._select(fields, names)

    def travelling(self, fields: Fields) -> list[tuple[bytes, bytes]]:
        """Those of a client's fields that go upstream: what is taken, and where the call belongs in a trace."""
        names = self._travelling
        return [field for field in fields if field[0] in names] if self._is_listed else self._select(fields, names)

    def __or__(self, other: HeaderNames) -> HeaderNames:
        """What either takes."""
        both = HeaderNames(
            self._globs | other._globs,
            replaced=self._replaced & other._replaced,
            is_every=self._is_every or other._is_every,
        )
        both._names = self._names | other._names
        both._travelling = self._travelling | other._travelling
        return both

    def _select(self, fields: Fields, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
        if self._is_every:
            return list(fields)
        return [field for field in fields if field[0] in names or self._is_matched(field[0])]

    def _is_matched(self, name: bytes) -> bool:
        twin = _twin(name)
        if self._match is None or twin in self._replaced or name in TRACE_HEADERS:
            return False
        return self._match(name.decode("latin-1")) is not None and not _GUARDED.fullmatch(twin.decode("latin-1"))

    def _unreplaced(self, names: Iterable[bytes]) -> frozenset[bytes]:
        return frozenset(name for name in names if _twin(name) not in self._replaced)


def _twin(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")


NO_HEADERS = HeaderNames()
"""Of a backend that reads none."""
EVERY_HEADER = HeaderNames(is_every=True)
"""Of a backend that does not tell which it reads."""
