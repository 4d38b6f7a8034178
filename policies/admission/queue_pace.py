"""How fast a line moves on, and so how long one who is turned away had better stay away.

Whoever leaves the line makes it shorter, sent off or turned away: under overload most are turned away.
"""

from __future__ import annotations

_HALF_LIFE_S = 5.0
_MIN_S, _MAX_S = 0.05, 300.0


class QueuePace:
    """Tokens that leave per second, the last few seconds counting most. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._last: float | None = None

    def resume(self, now: float) -> None:
        """Someone waits again: the time until now was nobody's."""
        self._last = now

    def note(self, tokens: int, now: float) -> None:
        """So many tokens have left."""
        self._fade(now)
        self._tokens += tokens

    def seconds_for(self, tokens: int, now: float, *, default: float) -> float:
        """How long so many tokens will take, 0.05..300 s; `default` while nothing has left."""
        self._fade(now)
        if self._tokens <= 0 or self._seconds <= 0:
            return default
        return min(max(tokens * self._seconds / self._tokens, _MIN_S), _MAX_S)

    def _fade(self, now: float) -> None:
        """Tokens and the seconds that they took fade together, so that their quotient stays a rate from the start."""
        if self._last is None:
            self._last = now
            return
        elapsed_s = now - self._last
        if elapsed_s > 0:
            keep = 0.5 ** (elapsed_s / _HALF_LIFE_S)
            self._tokens *= keep
            self._seconds = self._seconds * keep + elapsed_s
            self._last = now
