"""Days of a time zone, as numbers that people can read: 20261129."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from policies.time_zone import zone_of

_QUARTER_US = 900 * 10**6
"""Days begin at a whole quarter of an hour of UTC, in every zone since 1972."""
_MAX_CACHED = 4096


class Days:
    """Which day a moment falls on. Asked in order of time, nearly each answer is a look-up."""

    def __init__(self, zone: str) -> None:
        self.zone = zone
        self._zone = zone_of(zone)
        self._cache: dict[int, int] = {}

    def of(self, at_us: int) -> int:
        """The day of a moment, in microseconds since the Unix epoch. Raises: ValueError out of the years 1..9999."""
        quarter = at_us // _QUARTER_US
        day = self._cache.get(quarter)
        if day is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            try:
                moment = datetime.fromtimestamp(quarter * 900, self._zone)
            except (OverflowError, OSError) as error:
                raise ValueError(f"no day of any calendar: {at_us} us") from error
            day = self._cache[quarter] = day_number(moment.date())
        return day

    def each_of(self, times_us: Sequence[int]) -> list[int]:
        """The days of at least one moment. Raises: ValueError where one of them has none."""
        first, last = min(times_us), max(times_us)
        if first // _QUARTER_US == last // _QUARTER_US:
            return [self.of(first)] * len(times_us)
        return [self.of(at_us) for at_us in times_us]


def day_number(day: date) -> int:
    """2026-11-29 as 20261129."""
    return day.year * 10_000 + day.month * 100 + day.day


def day_text(number: int) -> str:
    """20261129 as 2026-11-29."""
    return f"{number // 10_000:04d}-{number // 100 % 100:02d}-{number % 100:02d}"


def hour_text(number: int) -> str:
    """Hours since the Unix epoch as 2026-11-29T14Z."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=number)).strftime("%Y-%m-%dT%HZ")
