"""Days of time zones: no gap, no overlap, and as long as the clocks make them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest

from gateway.ledger.days import Days, day_number, day_text, hour_text
from gateway.ledger.report import Period

_QUARTER_US = 900 * 10**6


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**6


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"])
def test_days_follow_each_other_without_gap(zone: str) -> None:
    """Each quarter of an hour is in the day of the one before, or in the next; days have 23 to 25 hours."""
    days = Days(zone)
    lengths: dict[int, int] = {}
    moment = begin = at("2026-01-01T00:00:00")
    order = []
    while moment < begin + 730 * 86400 * 10**6:
        day = days.of(moment)
        assert day == days.of(moment + _QUARTER_US - 1)
        if not order or order[-1] != day:
            order.append(day)
        lengths[day] = lengths.get(day, 0) + 1
        moment += _QUARTER_US

    dates = [date(day // 10_000, day // 100 % 100, day % 100) for day in order]
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(dates))
    inner = {lengths[day] for day in order[1:-1]}
    assert inner <= {92, 94, 96, 98, 100}


@pytest.mark.parametrize(
    ("moment", "day"),
    [
        ("2026-03-28T23:00:00", 20260329),
        ("2026-03-29T21:59:59", 20260329),
        ("2026-03-29T22:00:00", 20260330),
        ("2026-10-24T22:00:00", 20261025),
        ("2026-10-25T22:59:59", 20261025),
        ("2026-10-25T23:00:00", 20261026),
    ],
)
def test_day_of_a_change_of_clocks_ends_at_local_midnight(moment: str, day: int) -> None:
    """In Berlin, at the ends of March and October."""
    assert Days("Europe/Berlin").of(at(moment)) == day


@pytest.mark.parametrize("zone", ["UTC", "America/Santiago", "Africa/Cairo", "Atlantic/Azores", "Asia/Kathmandu"])
def test_period_has_the_hours_that_begin_in_its_days(zone: str) -> None:
    """Where clocks change at midnight too, so that the last hour of a day comes twice, or its first one never does."""
    days = Days(zone)
    began: dict[int, list[int]] = {}
    for hour in range(at("2026-01-01T00:00:00") // 3_600_000_000, at("2028-01-01T00:00:00") // 3_600_000_000):
        began.setdefault(days.of(hour * 3_600_000_000), []).append(hour)
    for day in (date(2026, 1, 2) + timedelta(days=n) for n in range(728)):
        hours = began[day_number(day)]
        within = Period(day, day).hours(zone)
        assert (within.first, within.last) == (hours[0], hours[-1])


def test_period_may_be_as_long_as_the_calendar() -> None:
    """From its first day to its last one."""
    hours = Period(date.min, date.max).hours("America/Santiago")
    assert hours.first is not None
    assert hours.first < 0
    assert hours.last is None


def test_moment_out_of_every_calendar_is_refused() -> None:
    """A clock may say anything."""
    for moment in (2**62, -(2**62)):
        with pytest.raises(ValueError):
            Days("UTC").of(moment)


def test_days_and_hours_are_shown_for_people() -> None:
    """As ISO 8601 writes them."""
    assert day_text(day_number(date(2026, 3, 1))) == "2026-03-01"
    assert hour_text(at("2026-03-01T14:59:59") // 3_600_000_000) == "2026-03-01T14Z"
