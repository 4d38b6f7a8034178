"""Stop strings, found across the borders of tokens. What may still become one is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Reads the text of one answer piece by piece, at a cost for each character that the text before does not add to.

    The stop string that ends first wins, the longest of those that end together: how the text is cut into pieces
    changes nothing. With `include_stop` it belongs to the text that goes out.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """`stops` are not empty strings."""
        # The longest first.
        self._stops = [_Begun(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes more text; returns what can go out, and the stop string that was found.

        What stands behind a stop string is dropped; what is pushed after that is looked at by itself.
        """
        held = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            found = [begun.stop for begun in self._stops if begun.is_whole_with(character)]
            if found:
                self._held = ""
                for begun in self._stops:
                    begun.length = 0
                return held[: end if self._include_stop else end - len(found[0])], found[0]
        border = len(held) - max((begun.length for begun in self._stops), default=0)
        self._held = held[border:]
        return held[:border], None

    def flush(self) -> str:
        """What is held back when the answer has ended without a stop string."""
        held, self._held = self._held, ""
        return held


class _Begun:
    """As much of a stop string as the text ends with; found as Knuth, Morris and Pratt do it (1977)."""

    __slots__ = ("_shorter", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        # For each beginning of the stop string the longest shorter one that it ends with, as far as it was needed.
        self._shorter = [0]

    def is_whole_with(self, character: str) -> bool:
        """Goes on by a character: whether the text ends with the whole of it now."""
        while self.length and self.stop[self.length] != character:
            self.length = self._shorter_than(self.length)
        self.length += self.stop[self.length] == character
        return self.length == len(self.stop)

    def _shorter_than(self, length: int) -> int:
        shorter = self._shorter
        while len(shorter) < length:
            character, begun = self.stop[len(shorter)], shorter[-1]
            while begun and self.stop[begun] != character:
                begun = shorter[begun - 1]
            shorter.append(begun + (self.stop[begun] == character))
        return shorter[length - 1]
