"""The time by which things are taken away for good: a wall clock that jumps ahead is not believed at once."""

from __future__ import annotations

from backends.clock import Clock

_ALIKE_S = 60.0
_BELIEVED_AFTER_S = 600.0


class SettledWallClock:
    """The wall clock; where it has jumped ahead, what it would show without that, until it has gone on so for ten
    minutes. One that is set back is right at once: nothing is lost by it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = self._doubted_s = clock.wall() - clock.now()
        """Of the monotonic clock."""
        self._doubted_since = clock.now()

    def __call__(self) -> float:
        """Seconds since the Unix epoch."""
        wall, now = self._clock.wall(), self._clock.now()
        ahead_s = wall - now
        if abs(ahead_s - self._doubted_s) >= _ALIKE_S:
            self._doubted_s, self._doubted_since = ahead_s, now
        if ahead_s < self._ahead_s + _ALIKE_S or now - self._doubted_since >= _BELIEVED_AFTER_S:
            self._ahead_s = ahead_s
        return now + self._ahead_s
