"""Prompt lookup: what followed the last tokens when they occurred before, in the text itself or in a prediction."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

SHORTEST_MATCH = 2
LONGEST_MATCH = 16
_MOST_CANDIDATES = 16
"""Earlier occurrences looked at in one search, latest first; bounds its time."""

_MOST_AT_ONCE = 4096
"""Pairs taken in at once, in about a millisecond: all answers of a step wait for it."""


@dataclass(frozen=True, slots=True)
class NgramMatch:
    """The tokens at `position` follow an occurrence of the last `length` tokens of a text."""

    position: int
    length: int


class PairIndex:
    """Where each pair of neighbouring tokens occurs in a text that grows; a new token costs O(1).

    Holds no tokens: the text is handed to each call, and may have been appended to since the last.
    """

    __slots__ = ("_latest", "_previous")

    def __init__(self) -> None:
        # For a pair, the latest position behind it; for that position, the one before of the same pair, 0 for none.
        self._latest: dict[int, int] = {}
        self._previous = array("i", (0, 0))

    def extend(self, text: list[int]) -> None:
        """Takes in the pairs of `text` that something follows, as many as a step has time for."""
        latest, previous = self._latest, self._previous
        begin = len(previous)
        for position in range(begin, min(len(text), begin + _MOST_AT_ONCE)):
            pair = text[position - 2] << 32 | text[position - 1]
            previous.append(latest.get(pair, 0))
            latest[pair] = position

    def find(self, text: list[int], suffix: list[int]) -> NgramMatch | None:
        """The longest match of the end of `suffix` in `text` as far as it was taken in, the latest among equals.

        At least SHORTEST_MATCH tokens, and no more than LONGEST_MATCH are compared.
        """
        if len(suffix) < SHORTEST_MATCH:
            return None
        position = self._latest.get(suffix[-2] << 32 | suffix[-1], 0)
        best: NgramMatch | None = None
        for _ in range(_MOST_CANDIDATES):
            if not position:
                break
            length = _match_length(text, position, suffix)
            if best is None or length > best.length:
                best = NgramMatch(position, length)
            if length == LONGEST_MATCH:
                break
            position = self._previous[position]
        return best


def continuation(text: list[int], position: int, num_tokens: int) -> list[int]:
    """`num_tokens` tokens from `position` on; past the end of the text it repeats what it has read."""
    found = text[position : position + num_tokens]
    period = len(text) - position
    while len(found) < num_tokens:
        found.append(found[-period])
    return found


def _match_length(text: list[int], position: int, suffix: list[int]) -> int:
    """Of the tokens before `position` and the end of `suffix`, how many agree; the last two are known to."""
    most = min(LONGEST_MATCH, position, len(suffix))
    length = SHORTEST_MATCH
    while length < most and text[position - length - 1] == suffix[-length - 1]:
        length += 1
    return length
