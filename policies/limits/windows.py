"""The windows of budgets: a day, a week, a calendar month of a time zone, or all of time."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Literal

import msgspec

from policies.time_zone import zone_of

Every = Literal["day", "week", "month", "total"]


class Window(msgspec.Struct, frozen=True):
    """One of them, in Unix seconds; `first_day` is None for all of time."""

    first_day: date | None
    begins_at: float
    ends_at: float | None

    @property
    def name(self) -> str:
        """Its first day, as counters are named after it."""
        return "" if self.first_day is None else self.first_day.isoformat()


_ALL_TIME = Window(None, 0.0, None)


class Windows:
    """Of one kind in one time zone. Where the clock is set back, a window comes again with what was spent in it."""

    def __init__(self, every: Every, time_zone: str) -> None:
        self._every = every
        self._zone = zone_of(time_zone)
        self._last = _ALL_TIME

    def at(self, now_s: float) -> Window:
        """The window of a moment, in Unix seconds."""
        if self._every == "total":
            return _ALL_TIME
        last = self._last
        if last.ends_at is None or not last.begins_at <= now_s < last.ends_at:
            last = self._last = self._of(datetime.fromtimestamp(now_s, self._zone).date())
        return last

    def _of(self, day: date) -> Window:
        if self._every == "day":
            begin, end = day, day + timedelta(days=1)
        elif self._every == "week":
            # Weeks begin on Mondays, as ISO 8601 has them.
            begin = day - timedelta(days=day.weekday())
            end = begin + timedelta(days=7)
        else:
            begin = day.replace(day=1)
            end = (begin + timedelta(days=31)).replace(day=1)
        return Window(begin, self._midnight(begin), self._midnight(end))

    def _midnight(self, day: date) -> float:
        """When a day begins. Where clocks jump over midnight, that is the moment of the jump."""
        return datetime.combine(day, time(), self._zone).timestamp()
