"""How many calls a backend may have at once, where nothing better is known of it than how it took the last ones.

More while the first token is not later than it would be alone, fewer when it is, far fewer when it says 429. By the
delay of the first token and not of the whole answer, whose length is the model's own. Pure: the time is an argument.
"""

from __future__ import annotations

from math import inf

_FIRST_LIMIT = 8.0
_MAX_LIMIT = 65_536.0
_EARLY, _LATE = 0.1, 0.25
"""Delay beside the first token's limit: below, one more may go; above, fewer."""
_SLOWER, _REFUSED = 0.85, 0.7
_PAUSE_S, _MAX_PAUSE_S = 1.0, 60.0


class ConcurrencyLimit:
    """The limit of one backend, in calls. `has_refused` once it has said 429: then the limit counts for good."""

    __slots__ = ("_changed_at", "_paused_until", "has_refused", "limit")

    def __init__(self) -> None:
        self.limit = _FIRST_LIMIT
        self.has_refused = False
        self._paused_until = -inf
        self._changed_at = -inf

    def has_room(self, in_flight: int, now: float) -> bool:
        """Whether one more may go."""
        return in_flight < self.limit and now >= self._paused_until

    def observe(self, delay: float, in_flight: int, sent_at: float, now: float) -> None:
        """An answer that began `delay` later than it would have alone, as a share of the first token's limit.

        `in_flight` others are still there. What was sent before the last change says nothing of what came after.
        """
        if delay < _EARLY:
            if in_flight + 1 >= self.limit:
                self.limit = min(self.limit + 1 / self.limit, _MAX_LIMIT)
        elif delay > _LATE and sent_at > self._changed_at:
            self.limit = max(1.0, self.limit * _SLOWER)
            self._changed_at = now

    def refused(self, in_flight: int, sent_at: float, now: float, retry_after_s: float | None) -> None:
        """429, with `in_flight` others there: fewer from now on, and none for as long as it says."""
        self.has_refused = True
        pause_s = _PAUSE_S if retry_after_s is None else min(retry_after_s, _MAX_PAUSE_S)
        self._paused_until = max(self._paused_until, now + pause_s)
        if sent_at > self._changed_at:
            self.limit = max(1.0, min(self.limit, in_flight + 1) * _REFUSED)
            self._changed_at = now
