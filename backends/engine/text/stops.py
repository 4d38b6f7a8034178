"""Stop strings, found across the borders of tokens. What may still become one is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Reads the text of one answer piece by piece.

    The stop string that ends first wins, the longest of those that end together: how the text is cut into pieces
    changes nothing. With `include_stop` it belongs to the text that goes out.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """`stops` are not empty strings."""
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes more text; returns what can go out, and the stop string that was found.

        After a stop string nothing more is to be pushed.
        """
        held = self._held + text
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = held.find(stop)
            if start >= 0:
                match = (start + len(stop), start, stop)
                found = match if found is None else min(found, match)
        if found is not None:
            end, start, stop = found
            self._held = ""
            return held[: end if self._include_stop else start], stop
        border = len(held) - max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[border:]
        return held[:border], None

    def flush(self) -> str:
        """What is held back when the answer has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with, without being it."""
    for start in range(max(len(text) - len(stop) + 1, 0), len(text)):
        if stop.startswith(text[start:]):
            return len(text) - start
    return 0
