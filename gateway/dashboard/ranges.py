"""Spans of time that can be looked at, in steps, each beside the one that it is compared with."""

from __future__ import annotations

from bisect import bisect_right
from datetime import date, datetime, time, timedelta, timezone
from typing import Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from gateway.ledger.days import day_number, day_text, hour_text
from gateway.ledger.sums import Within
from policies.time_zone import zone_of

RangeName = Literal["1h", "24h", "7d", "30d", "month"]
RANGES: tuple[RangeName, ...] = get_args(RangeName)

_WEEK_H = 7 * 24


class Tick(NamedTuple):
    """One step: a minute, an hour or a day as the ledger counts it, when it begins, and what it is compared with."""

    number: int
    at: int
    """Seconds since the Unix epoch."""
    before: int | None


class Range(NamedTuple):
    """A span that ends now. The last step of it is not over; its counterpart is compared up to the same hour."""

    name: RangeName
    step: Literal["minute", "hour", "day"]
    today: date
    ticks: tuple[Tick, ...]
    day_before: int
    """The day on which the span begins that it is compared with, as 20261129."""
    before_hours: Within | None
    """Of the last day before, the hours that have their counterpart in today; None where steps are no days."""

    def text(self, number: int) -> str:
        """A step as sums name it."""
        if self.step == "minute":
            return str(number)
        return day_text(number) if self.step == "day" else hour_text(number)

    @property
    def step_minutes(self) -> int:
        """How long a step is; days are looked at by the hour, for they begin where their zone says."""
        return 1 if self.step == "minute" else 60

    def step_of(self, at_s: int) -> int | None:
        """In which step a moment lies; None before the first one."""
        place = bisect_right(self.ticks, at_s, key=lambda tick: tick.at) - 1
        return place if place >= 0 else None

    @property
    def within(self) -> Within:
        """What is looked at."""
        return Within(self.step, self.ticks[0].number, self.ticks[-1].number)

    @property
    def before(self) -> Within:
        """What it is compared with."""
        known = self._known_before()
        return Within(self.step, known[0], known[-1])

    @property
    def before_until_now(self) -> list[Within]:
        """The same up to this hour of its last day, in parts."""
        if self.before_hours is None:
            return [self.before]
        whole_days = self._known_before()[:-1]
        return [*([Within("day", whole_days[0], whole_days[-1])] if whole_days else []), self.before_hours]

    def _known_before(self) -> list[int]:
        return [tick.before for tick in self.ticks if tick.before is not None]


def range_of(name: RangeName, now_s: float, zone: str) -> Range:
    """An hour and 24 are compared with those a week ago, 7 and 30 days with as many before them, a month with the same
    days of the one before."""
    place, today = zone_of(zone), day_of(now_s, zone)
    if name == "1h":
        minute = int(now_s // 60)
        minutes = range(minute - 59, minute + 1)
        ticks = [Tick(m, m * 60, m - _WEEK_H * 60) for m in minutes]
        return Range(name, "minute", today, tuple(ticks), _day_a_week_before(ticks, zone), None)
    if name == "24h":
        hour = int(now_s // 3600)
        hours = range(hour - 23, hour + 1)
        ticks = [Tick(h, h * 3600, h - _WEEK_H) for h in hours]
        return Range(name, "hour", today, tuple(ticks), _day_a_week_before(ticks, zone), None)
    if name == "month":
        first = today.replace(day=1)
        before_first = (first - timedelta(days=1)).replace(day=1)
    else:
        num_days = 7 if name == "7d" else 30
        first = today - timedelta(days=num_days - 1)
        before_first = first - timedelta(days=num_days)
    ticks = []
    for index in range((today - first).days + 1):
        day = first + timedelta(days=index)
        before = before_first + timedelta(days=index)
        is_there = before < first
        ticks.append(Tick(day_number(day), _begin(day, place), day_number(before) if is_there else None))
    last_before = before_first + timedelta(days=len(ticks) - 1)
    hours_today = int((now_s - _begin(today, place)) // 3600)
    before_hours = None
    if last_before < first:
        first_hour, end_hour = (_begin(last_before + timedelta(days=n), place) // 3600 for n in (0, 1))
        # Today may have more hours than that day had.
        before_hours = Within("hour", first_hour, min(first_hour + hours_today, end_hour - 1))
    return Range(name, "day", today, tuple(ticks), day_number(before_first), before_hours)


def _day_a_week_before(ticks: list[Tick], zone: str) -> int:
    return day_number(day_of(ticks[0].at - _WEEK_H * 3600, zone))


def day_of(now_s: float, zone: str) -> date:
    """Which day it is there."""
    return datetime.fromtimestamp(now_s, zone_of(zone)).date()


def _begin(day: date, zone: ZoneInfo | timezone) -> int:
    return int(datetime.combine(day, time(), zone).timestamp())
