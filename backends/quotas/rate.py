"""A declared rate a minute, kept to: a token bucket that no minute sees more of than was declared.

A bucket of capacity C that fills at r lets C + 60 r through in its fullest minute. So it fills at less than the
declared rate, by as much as it may let through at once.
"""

from __future__ import annotations

_WINDOW_S = 61.0
"""A minute, and what two calls of it may differ in how long they are on their way."""


class MinuteRate:
    """So many a minute, of which those of `burst_s` seconds may come at once; of whole things (`step` 1) always one.

    What is taken may turn out to be more than was asked for: the level goes below zero then, and later calls wait.
    """

    __slots__ = ("_at", "_burst_s", "_declared", "_level", "_per_s", "_step", "capacity", "per_minute")

    def __init__(self, per_minute: float, burst_s: float, now: float, *, step: int = 0) -> None:
        self._declared = per_minute
        self._burst_s = burst_s
        self._step = step
        self._at = now
        self._set(per_minute)
        self._level = self.capacity

    def share_among(self, number: int) -> None:
        """So many count apart, each its share of what was declared."""
        self._set(self._declared / number)
        self._level = min(self._level, self.capacity)

    def wait_s(self, wanted: float, now: float) -> float:
        """Seconds until so many can be taken; what is more than ever fits waits for all there is."""
        missing = min(wanted, self.capacity) - self.level(now)
        return missing / self._per_s if missing > 1e-9 else 0.0

    def take(self, wanted: float, now: float) -> None:
        """So many go out."""
        self._level = self.level(now) - wanted
        self._at = now

    def give_back(self, number: float) -> None:
        """So many of them were not used after all; below zero, so many more were."""
        self._level = min(self.capacity, self._level + number)

    def level(self, now: float) -> float:
        """What can be taken now; below zero where more was used than there was."""
        return min(self.capacity, self._level + (now - self._at) * self._per_s)

    def _set(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self.capacity = max(float(self._step), per_minute * self._burst_s / 60)
        # Whole things exceed a bound by one at least, so that it is kept with less than one more.
        self._per_s = (per_minute - self.capacity + self._step) / _WINDOW_S
