"""What a token takes without a draft, lately; another pace is believed as soon as it can hardly be chance."""

from __future__ import annotations

from collections import deque
from math import sqrt

_WEIGHT = 0.05
"""Of a token, once many were seen."""
_MOST = 4.0
"""Times what is known: what takes longer is a stall, and says no more than that."""
_IN_A_ROW = 5
_SELDOM = 2.5
"""Standard deviations of the mean of so many notes."""
_FIRST_VARIANCE = 0.25


class AlonePace:
    """The mean of the latest tokens. Five notes in a row that are further from it than chance takes such are another
    pace, and count alone. One that is late is not, and neither are tokens that come in twos and threes.
    """

    __slots__ = ("_last", "_num_tokens", "_variance", "s_per_token")

    def __init__(self) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=_IN_A_ROW)
        """Tokens of the latest notes, and seconds of one of them."""
        self._num_tokens = 0
        self._variance = _FIRST_VARIANCE
        """Of a token, over the square of the mean."""
        self.s_per_token = 0.0
        """0 while nothing was measured."""

    def add(self, num_tokens: int, seconds: float) -> None:
        """Notes tokens that have come within so many seconds."""
        found, known = seconds / num_tokens, self.s_per_token
        if not known:
            self._last.append((num_tokens, found))
            self._num_tokens, self.s_per_token = num_tokens, found
            return
        found = min(found, _MOST * known)
        self._last.append((num_tokens, found))
        lately = sum(number for number, _ in self._last)
        mean = sum(number * each for number, each in self._last) / lately
        if self._is_another(mean, lately):
            self._num_tokens, self.s_per_token = lately, mean
            return
        self._num_tokens += num_tokens
        weight = 1 - (1 - max(_WEIGHT, 1 / self._num_tokens)) ** num_tokens
        self._variance += weight * (num_tokens * (found / known - 1) ** 2 - self._variance)
        self.s_per_token += weight * (found - known)

    def _is_another(self, mean: float, num_tokens: int) -> bool:
        if len(self._last) < _IN_A_ROW:
            return False
        middle = sorted(each for _, each in self._last)[_IN_A_ROW // 2]
        off = [each / self.s_per_token - 1 for each in (middle, mean)]
        by_chance = _SELDOM * sqrt(self._variance / num_tokens)
        return min(off) > by_chance or max(off) < -by_chance
