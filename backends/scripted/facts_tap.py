"""The tap of backends that count for themselves: how a stream ended, and what it used."""

from __future__ import annotations

from collections.abc import Callable

from backends.charges.usage import Usage
from backends.protocol import Facts
from backends.stream import StreamEnd


class FactsTap:
    """Writes down how a stream ended, and what `usage` then says where it came whole."""

    __slots__ = ("_facts", "_usage")

    def __init__(self, facts: Facts, usage: Callable[[], Usage]) -> None:
        self._facts = facts
        self._usage = usage

    def feed(self, piece: bytes) -> None:
        """Nothing to learn from the words."""

    def end(self, how: StreamEnd) -> None:
        """The stream has ended."""
        self._facts.stream_end = how
        if how is StreamEnd.CLEAN:
            self._facts.usage = self._usage()
