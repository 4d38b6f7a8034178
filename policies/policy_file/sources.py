"""The files that make up a policy: the one that was asked for, and those that its `include` names.

They are read together and watched together. Included files add routes, keys and backends, nothing else, and include
nothing themselves. They lie below the folder of the first one: patterns and links that lead out of it are refused.
"""

from __future__ import annotations

import glob
import hashlib
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from backends.errors import ConfigurationError
from backends.plain_file import read_plain_file
from policies.policy_file.locate import MAX_BYTES, Document, IncludedFrom, Place, Problem, read_document
from policies.policy_file.problems import short_value

MAX_FILES = 10_000
"""The most files of one policy."""
MAX_ALL_BYTES = 64 * 1024**2
"""The most that they have together."""
MAX_ALL_VALUES = 2_000_000
"""The most values that they have together, aliases written out."""
MAX_KEPT_BYTES = 256 * 1024
"""The most that is kept of what was read, for whoever wants to see it; of more nothing is."""

_SECTIONS = {"routes": (list, "list"), "keys": (list, "list"), "backends": (dict, "mapping of keys to values")}

FileState = tuple[int, int, int]
"""When a file was changed, its size and number."""
Fingerprint = tuple[tuple[Path, FileState | None], ...]
"""Files and the state of each; None for a file that is not there."""


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy's text, whole: all of its files, and a short hash over them."""

    document: Document
    revision: str


class PolicyFiles:
    """Reads them, and tells whether they are still the same. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._patterns: tuple[str, ...] = ()
        self._seen: dict[Path, FileState | None] = {}
        self.texts: dict[str, bytes] | None = None
        """What was read last, by path below the policy's folder, the first file in front; None where that is long."""

    @property
    def seen(self) -> Fingerprint:
        """The fingerprint of what was read last: files that have changed since then have another one."""
        return tuple(self._seen.items())

    def fingerprint(self) -> Fingerprint:
        """What changes when one of the files does, or when there are others than there were."""
        included = (path for pattern in self._patterns for path in self._matches(pattern))
        return tuple((path, _state(path)) for path in dict.fromkeys((self.path, *included)))

    def read(self) -> PolicySource:
        """What the files say now.

        Raises: ConfigurationError where the first file cannot be read; all other problems are in the document.
        """
        self._seen = {self.path: _state(self.path)}
        # Of a file that cannot be read nothing is known, nor of what it included.
        self._patterns = ()
        try:
            raw = read_plain_file(self.path, MAX_BYTES)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: the policy file cannot be read: {error.strerror}") from error
        return self.combine(raw)

    def combine(self, raw: bytes) -> PolicySource:
        """The same, where the first file has these bytes."""
        first = read_document(raw)
        self._patterns = _patterns_of(first)
        together = _Together(first, raw, str(self.path))
        for index, pattern in enumerate(self._patterns):
            problem = self._add(pattern, together)
            if problem is not None:
                together.problems.append(first.problem(("include", index), f"{short_value(pattern)} - {problem}"))
        self.texts = None
        if together.num_bytes <= MAX_KEPT_BYTES:
            folder = self.path.parent
            below = {path.relative_to(folder).as_posix(): text for path, text in together.texts.items()}
            self.texts = {self.path.name: raw, **below}
        return together.source()

    def _add(self, pattern: str, together: _Together) -> str | None:
        """Add the files that match. Returns what is wrong with the pattern."""
        if not _is_below(pattern):
            return "must lead to files below the policy's own folder: no / in front, no .. and no **"
        paths = self._matches(pattern)
        if not paths:
            return f"matches no file in {self.path.parent}"
        for path in paths:
            # Before it is read, so that a change in between is seen as one.
            self._seen.setdefault(path, _state(path))
        folder = self.path.parent.resolve()
        for path in paths:
            problem = together.add(path, folder)
            if problem is not None:
                return problem
        return None

    def _matches(self, pattern: str) -> list[Path]:
        if not _is_below(pattern):
            return []
        folder = self.path.parent
        return [path for name in sorted(glob.glob(pattern, root_dir=folder)) if (path := folder / name) != self.path]


class _Together:
    """A document that grows file by file."""

    def __init__(self, first: Document, raw: bytes, source: str) -> None:
        self._source = source
        self.problems = list(first.problems)
        self._first = first
        self._data = dict(first.data) if isinstance(first.data, dict) else {}
        # Copies of their own, for these grow.
        self._data |= {name: copy(self._data[name]) for name in _SECTIONS if name in self._data}
        self._lines = dict(first.lines)
        self._origins: dict[Place, IncludedFrom] = {}
        self._hash = hashlib.sha256(raw)
        self.num_bytes = len(raw)
        self._num_values = first.num_values
        self._paths: set[Path] = set()
        self.texts: dict[Path, bytes] = {}
        """Of files that were added, as far as all are short together."""

    def add(self, path: Path, folder: Path) -> str | None:
        """Add what a file says; once, however often it is named. Returns why it cannot be added."""
        if path in self._paths:
            return None
        self._paths.add(path)
        target = path.resolve()
        if not target.is_relative_to(folder):
            return f"{path} leads out of the policy's folder, to {target}"
        try:
            raw = read_plain_file(path, MAX_BYTES)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        self.num_bytes += len(raw)
        if self.num_bytes > MAX_ALL_BYTES or len(self._paths) > MAX_FILES:
            return f"more than {MAX_FILES} files, or more than {MAX_ALL_BYTES // 1024**2} MiB together"
        if self.num_bytes <= MAX_KEPT_BYTES:
            self.texts[path] = raw
        self._hash.update(b"\0%b\0%d\0%b" % (path.name.encode("utf-8", "surrogateescape"), len(raw), raw))
        starts = {name: len(items) for name in _SECTIONS if isinstance(items := self._data.get(name), list)}
        document = read_document(raw, starts)
        self._num_values += document.num_values
        if self._num_values > MAX_ALL_VALUES:
            return f"more than {MAX_ALL_VALUES} values together"
        self._merge(document, str(path))
        return None

    def _merge(self, document: Document, source: str) -> None:
        sections = document.data if isinstance(document.data, dict) else {}
        origins: dict[Place, IncludedFrom] = {}
        complaints: list[tuple[Place, str]] = []
        if document.data is not None and not isinstance(document.data, dict):
            complaints.append(((), f"{short_value(document.data)} - must be a mapping of keys to values"))
        for name, section in sections.items():
            kind, word = _SECTIONS.get(name, (None, ""))
            if kind is None:
                allowed = ", ".join(_SECTIONS)
                complaints.append(((name,), f"cannot stand in a file that is included. Allowed: {allowed}"))
            elif not isinstance(section, kind):
                complaints.append(((name,), f"{short_value(section)} - must be a {word}"))
            elif isinstance(section, list):
                held = self._data.setdefault(name, [])
                if isinstance(held, list):
                    origins.update({(name, len(held) + at): IncludedFrom(source, at) for at in range(len(section))})
                    held += section
            else:
                held = self._data.setdefault(name, {})
                for key, value in section.items() if isinstance(held, dict) else ():
                    origins[name, key] = IncludedFrom(source, key)
                    if key in held:
                        taken = self._position((name, key))
                        complaints.append(((name, key), f"the backend name {short_value(key)} is taken, see {taken}"))
                    else:
                        held[key] = value
        local = Document(None, document.lines, (), origins)
        found = [*document.problems, *(local.problem(*complaint) for complaint in complaints)]
        self.problems += [replace(_at_home(problem, origins), source=source) for problem in found]
        # Where both have a place, as with a name that is taken, it is that of the first.
        self._origins.update({place: origin for place, origin in origins.items() if place not in self._lines})
        for place, line in document.lines.items():
            self._lines.setdefault(place, line)

    def _position(self, place: Place) -> str:
        return Document(None, self._lines, (), self._origins).position(place, self._source)

    def source(self) -> PolicySource:
        """All of it."""
        data = self._data if isinstance(self._first.data, dict) else self._first.data
        return PolicySource(
            Document(data, self._lines, tuple(self.problems), self._origins, self._num_values),
            self._hash.hexdigest()[:12],
        )


def _at_home(problem: Problem, origins: dict[Place, IncludedFrom]) -> Problem:
    """A problem with its place as its own file counts."""
    origin = origins.get(problem.place[:2])
    return problem if origin is None else replace(problem, place=(problem.place[0], origin.key, *problem.place[2:]))


def _patterns_of(first: Document) -> tuple[str, ...]:
    patterns = first.value(("include",))
    return tuple(pattern for pattern in patterns if isinstance(pattern, str)) if isinstance(patterns, list) else ()


def _is_below(pattern: str) -> bool:
    """Whether a pattern stays below the folder that it is taken from, as far as it can be told by its text."""
    return bool(pattern) and not pattern.startswith("/") and "**" not in pattern and ".." not in pattern.split("/")


def _state(path: Path) -> FileState | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
