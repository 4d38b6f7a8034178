"""How fast a queue becomes shorter, from which `Retry-After` of a refused call is computed.

Sent and refused calls count alike: both make the queue shorter, and under overload most calls are refused.
"""

from __future__ import annotations

_HALF_LIFE_S = 5.0
_MIN_S, _MAX_S = 0.05, 300.0


class QueuePace:
    """The tokens that leave the queue per second; the last few seconds count most. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._last: float | None = None

    def resume(self, now: float) -> None:
        """The queue is no longer empty: the time while it was empty does not count."""
        self._last = now

    def note(self, tokens: int, now: float) -> None:
        """Count tokens that have left the queue."""
        self._decay(now)
        self._tokens += tokens

    def seconds_for(self, tokens: int, now: float, *, default: float) -> float:
        """How long it takes until so many tokens have left, 0.05..300 s; `default` as long as nothing has left."""
        self._decay(now)
        if self._tokens <= 0 or self._seconds <= 0:
            return default
        return min(max(tokens * self._seconds / self._tokens, _MIN_S), _MAX_S)

    def _decay(self, now: float) -> None:
        """Decay the tokens together with the seconds that they took, so that their quotient is always a rate."""
        if self._last is None:
            self._last = now
            return
        elapsed_s = now - self._last
        if elapsed_s > 0:
            keep = 0.5 ** (elapsed_s / _HALF_LIFE_S)
            self._tokens *= keep
            self._seconds = self._seconds * keep + elapsed_s
            self._last = now
