"""The share of a backend's latest calls that failed, counted in two numbers and not in a list of calls."""

from __future__ import annotations

from math import inf


class ErrorRate:
    """Calls and failures of the latest seconds: at least half of `window_s`, at most all of it.

    Two halves, of which the older is dropped whole. `now` is in monotonic seconds and never goes back.
    """

    __slots__ = ("_before", "_half_s", "_latest", "_turns_at")

    def __init__(self, window_s: float) -> None:
        self._half_s = window_s / 2
        self._before = (0, 0)
        self._latest = [0, 0]
        self._turns_at = -inf

    def add(self, now: float, *, has_failed: bool) -> None:
        """One call that has ended."""
        if now >= self._turns_at:
            self._turn(now)
        self._latest[0] += 1
        self._latest[1] += has_failed

    def is_above(self, share: float, min_calls: int, now: float) -> bool:
        """Whether more than `share` of `min_calls` or more have failed."""
        if now >= self._turns_at:
            self._turn(now)
        calls = self._before[0] + self._latest[0]
        return calls >= min_calls and self._before[1] + self._latest[1] > share * calls

    def clear(self) -> None:
        """Forget everything."""
        self._turns_at = -inf

    def _turn(self, now: float) -> None:
        is_next = now < self._turns_at + self._half_s
        self._before = (self._latest[0], self._latest[1]) if is_next else (0, 0)
        self._latest = [0, 0]
        self._turns_at = self._turns_at + self._half_s if is_next else now + self._half_s
