"""YAML text to plain data that knows on which line everything stands. Strict and bounded; of policies it knows nothing.

Plain words are read as YAML 1.2 does: `on`, `off`, `yes` and dates are text, only `true` and `false` are booleans.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import yaml

MAX_BYTES = 1024**2
"""The largest file that is read."""
MAX_NODES = 50_000
"""The most values, aliases written out."""
MAX_DEPTH = 50
"""The deepest nesting."""

Place = tuple[str | int, ...]
"""Where a value stands: the keys and list positions that lead to it."""

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_TAG = "tag:yaml.org,2002:"
_TAGS = frozenset(
    _TAG + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq", "merge", "timestamp", "value")
)


_NO_STARTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a file: where it is, and what to do. Lines and columns count from 1; column 0 is unknown."""

    place: Place
    message: str
    line: int
    column: int = 0
    source: str = ""
    """The included file that it is in; "" for the file that was asked for."""

    def text(self, source: str) -> str:
        """`file:line[:column]: path: message`, on one line; `source` is the file that was asked for."""
        position = f"{self.line}:{self.column}" if self.column else str(self.line)
        path = f"{dotted(self.place)}: " if self.place else ""
        said = f"{path}{self.message}"
        # A key may hold line breaks and signs that steer a terminal.
        safe = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in said)
        return f"{self.source or source}:{position}: {safe}"


@dataclass(frozen=True, slots=True)
class IncludedFrom:
    """From which included file an entry comes, and its position or key there."""

    source: str
    key: str | int


@dataclass(frozen=True, slots=True)
class Document:
    """A file's data (None where it cannot be read at all), the line of each value, and what is wrong with its text.

    With what other files have added: `origins` has each of their entries, by the two parts of its place.
    """

    data: object
    lines: Mapping[Place, int]
    problems: tuple[Problem, ...]
    origins: Mapping[Place, IncludedFrom] = field(default_factory=dict)
    num_values: int = 0

    def problem(self, place: Place, message: str) -> Problem:
        """A problem at that place, or on the line of the nearest place above it that the file has."""
        known = place
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        origin = self.origins.get(place[:2])
        if origin is None:
            return Problem(place, message, line)
        return Problem((place[0], origin.key, *place[2:]), message, line, source=origin.source)

    def source_of(self, place: Place) -> str:
        """The included file that a place is in; "" for the file that was asked for."""
        origin = self.origins.get(place[:2])
        return origin.source if origin is not None else ""

    def position(self, place: Place, source: str) -> str:
        """`file:line` of a place that the document has; `source` is the file that was asked for."""
        return f"{self.source_of(place) or source}:{self.lines[place]}"

    def value(self, place: Place) -> object:
        """What the file says there; None where it says nothing."""
        value = self.data
        for part in place:
            if isinstance(value, dict) and isinstance(part, str):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value


def dissolve(document: Document) -> None:
    """Let go of what a document holds, one value after the other; it is of no use any more.

    There may be millions, and to free them in one step would stop every other thread for as long.
    """
    for mapping in (document.lines, document.origins):
        while isinstance(mapping, dict) and mapping:
            mapping.popitem()
    for section in document.data.values() if isinstance(document.data, dict) else ():
        while isinstance(section, list) and section:
            section.pop()


def dotted(place: Place) -> str:
    """A place as people write it: `routes[0].timeouts.total`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def read_document(raw: bytes, starts: Mapping[str, int] = _NO_STARTS) -> Document:
    """Parse one YAML file. Never raises: what is wrong is in `problems`.

    `starts`: the position that the first item of a top-level list gets, if not 0.
    """
    try:
        return _read(raw, starts)
    except _UnreadableError as error:
        return Document(None, {}, (error.problem,))


class _UnreadableError(Exception):
    def __init__(self, message: str, line: int = 1, column: int = 0) -> None:
        super().__init__(message)
        self.problem = Problem((), message, line, column)


def _read(raw: bytes, starts: Mapping[str, int]) -> Document:
    if len(raw) > MAX_BYTES:
        raise _UnreadableError(f"the file is larger than {MAX_BYTES // 1024} KiB")
    text = _decode(raw)
    try:
        root = yaml.compose(text, Loader=_BoundedLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 0)
        if mark and text[mark.index : mark.index + 1] == "\t":
            what = "a tab stands here, where YAML takes spaces only"
        raise _UnreadableError(f"this is not YAML: {what}", line, column) from error
    except yaml.YAMLError as error:
        raise _UnreadableError(f"this is not YAML: {' '.join(str(error).split())}") from error
    builder = _Builder(starts)
    data = builder.build(root, (), 0) if root is not None else None
    for _, section in root.value if isinstance(root, yaml.MappingNode) else ():
        # As in `dissolve`: its nodes go one by one.
        while isinstance(section.value, list) and section.value:
            section.value.pop()
    if data is None:
        raise _UnreadableError("the file is empty")
    return Document(data, builder.lines, tuple(builder.problems.values()), num_values=builder.num_nodes)


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _position(raw[: error.start].decode("utf-8-sig", "replace"))
        raise _UnreadableError(f"byte 0x{raw[error.start]:02x} is not UTF-8", line, column) from error
    found = _UNPRINTABLE.search(text)
    if found is not None:
        line, column = _position(text[: found.start()])
        raise _UnreadableError(f"the control character U+{ord(found[0]):04X} is not allowed", line, column)
    return text


def _position(before: str) -> tuple[int, int]:
    """Line and column of what follows this text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


class _BoundedLoader(yaml.CSafeLoader):
    """Refuses deep nesting while it composes, for that recurses in C."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        """Called by the composer in front of each node, with the one that it is in."""
        # No path resolvers are known here, which is all that the overridden methods care for.
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            line = parent.start_mark.line + 1 if parent is not None else 1
            raise _UnreadableError(f"nested deeper than {MAX_DEPTH} levels", line)

    def ascend_resolver(self) -> None:
        """Called behind each."""
        self._depth -= 1


class _Builder:
    """Turns nodes into data. Aliases are written out, so the number of values made is what is bounded."""

    def __init__(self, starts: Mapping[str, int]) -> None:
        self._starts = starts
        self.lines: dict[Place, int] = {}
        self.problems: dict[tuple[int, str], Problem] = {}
        self.num_nodes = 0

    def build(self, node: yaml.Node, place: Place, depth: int) -> object:
        """The data of a node that stands at `place`."""
        self._count(node, depth)
        if node.tag not in _TAGS:
            self._complain(node, place, f"the tag {node.tag.replace(_TAG, '!!')} is not allowed")
        if isinstance(node, yaml.MappingNode):
            mapping: dict[str, object] = {}
            for key, (key_node, value_node) in self._pairs(node, place, depth).items():
                self.lines[(*place, key)] = key_node.start_mark.line + 1
                mapping[key] = self.build(value_node, (*place, key), depth + 1)
            return mapping
        if isinstance(node, yaml.SequenceNode):
            items: list[object] = []
            start = self._starts.get(str(place[0]), 0) if len(place) == 1 else 0
            for index, item in enumerate(node.value, start):
                self.lines[(*place, index)] = item.start_mark.line + 1
                items.append(self.build(item, (*place, index), depth + 1))
            return items
        return _scalar(node) if isinstance(node, yaml.ScalarNode) else None

    def _pairs(self, node: yaml.MappingNode, place: Place, depth: int) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """A mapping's own pairs, then those it merges in (`<<`), which never replace its own."""
        self._count(node, depth)
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merged.extend(value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node])
            elif not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, place, "a key must be plain text")
            elif key_node.value in pairs:
                first = pairs[key_node.value][0].start_mark.line + 1
                self._complain(key_node, (*place, key_node.value), f"given twice, first on line {first}")
            else:
                pairs[key_node.value] = (key_node, value_node)
        for source in merged:
            if isinstance(source, yaml.MappingNode):
                for key, pair in self._pairs(source, place, depth + 1).items():
                    pairs.setdefault(key, pair)
            else:
                self._complain(source, place, "<< takes a mapping, or a list of mappings")
        return pairs

    def _count(self, node: yaml.Node, depth: int) -> None:
        self.num_nodes += 1
        line = node.start_mark.line + 1
        if self.num_nodes > MAX_NODES:
            raise _UnreadableError(f"more than {MAX_NODES} values, aliases written out", line)
        if depth > MAX_DEPTH:
            raise _UnreadableError(f"nested deeper than {MAX_DEPTH} levels, aliases written out", line)

    def _complain(self, node: yaml.Node, place: Place, message: str) -> None:
        line = node.start_mark.line + 1
        # The same text is met again wherever an alias repeats it; it is reported once.
        self.problems.setdefault((line, message), Problem(place, message, line))


def _scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    text: str = node.value
    if node.style or node.tag == _TAG + "str":
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(value := float(text)):
        return value
    return text
