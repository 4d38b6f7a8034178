"""Finds fields of a JSON object that passes in pieces, cut anywhere, and holds nothing else of it.

A field is found where it belongs and nowhere else: what a caller has a model write (texts, inputs of tools) may hold
the same name at another place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

Wanted: TypeAlias = "Mapping[bytes, Wanted | None]"
"""The names that are looked for, None for those whose value is wanted; of others the names within."""

_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_NEAR = re.compile(rb'["{}\[\],:]')
_FAR = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
"""Where nothing is wanted, a whole string is one step."""
_MAX_NAME_BYTES = 256
_MAX_VALUE_BYTES = 64 * 1024
_BLANKS = b" \t\r\n"


class FieldScanner:
    """Fed with one object; `found` has the values by now, as they stand there. A later one of the same name wins."""

    __slots__ = (
        *("_begins", "_depth", "_is_escaped", "_is_over", "_key", "_name", "_open", "_value", "_wanted"),
        *("_in_string", "found"),
    )

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._open: list[Wanted] = []
        """The objects around, as far as anything is wanted of them; all others are deeper than these."""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_over = False
        self._key: bytearray | None = None
        """The name that comes, or is coming; None where a value does."""
        self._name: bytes | None = None
        """Of the value that comes, where it is wanted or something in it is."""
        self._value: bytearray | None = None
        self._begins = 0
        self.found: dict[bytes, bytes] = {}

    def feed(self, piece: bytes) -> None:
        """The next piece; never raises."""
        at, end = 0, len(piece)
        if not self._depth and not self._is_over:
            at = end - len(piece.lstrip(_BLANKS))
            if at < end:
                self._is_over = piece[at : at + 1] != b"{"
        self._begins = 0
        while at < end and not self._is_over:
            if self._in_string:
                at = self._pass_string(piece, at)
                continue
            is_near = self._depth == len(self._open)
            match = (_NEAR if is_near else _FAR).search(piece, at)
            if match is None:
                break
            at = match.end()
            if at - match.start() == 1:
                self._pass_mark(piece, match.start(), is_near=is_near)
        if self._value is not None:
            self._keep(piece[self._begins :])

    def _pass_string(self, piece: bytes, at: int) -> int:
        """Where the string that goes on here is over, or the piece is."""
        begin = at
        if self._is_escaped:
            at += 1
            self._is_escaped = False
        rest = _REST_OF_STRING.match(piece, at)
        assert rest is not None, "it takes nothing, too"
        at = rest.end()
        if self._key is not None and len(self._key) <= _MAX_NAME_BYTES:
            self._key += piece[begin:at]
        if at == len(piece):
            return at
        if piece[at] != 0x22:
            # A backslash at the end of the piece.
            self._is_escaped = True
            return at + 1
        self._in_string = False
        if self._key is not None:
            name = bytes(self._key)
            self._name = name if name in self._open[-1] else None
            self._key = None
        return at + 1

    def _pass_mark(self, piece: bytes, at: int, *, is_near: bool) -> None:
        mark = piece[at : at + 1]
        if mark == b'"':
            self._in_string = True
        elif mark in b"{[":
            self._depth += 1
            within = (
                self._wanted if self._depth == 1 else self._open[-1].get(self._name) if self._name and is_near else None
            )
            if mark == b"{" and within is not None:
                self._open.append(within)
                self._key = bytearray()
            self._name = self._name if self._value is not None else None
        elif mark in b"}]":
            if is_near:
                self._end_value(piece, at)
                self._open.pop()
                self._key = None
            self._depth -= 1
            self._is_over = self._depth <= 0
        elif mark == b",":
            self._end_value(piece, at)
            self._key = bytearray()
        elif self._name is not None and self._open[-1][self._name] is None:
            self._value = bytearray()
            self._begins = at + 1

    def _end_value(self, piece: bytes, at: int) -> None:
        if self._value is not None:
            self._keep(piece[self._begins : at])
            if self._name is not None and len(self._value) <= _MAX_VALUE_BYTES:
                self.found[self._name] = bytes(self._value).strip(_BLANKS)
        self._value = self._name = None

    def _keep(self, part: bytes) -> None:
        """What is longer than what is wanted is not kept, and not found in the end."""
        assert self._value is not None, "a value is coming"
        if len(self._value) <= _MAX_VALUE_BYTES:
            self._value += part[: _MAX_VALUE_BYTES + 1]
