"""Windows follow each other without gap or overlap, in every zone, with days of 23 and 25 hours."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from policies.limits.windows import Every, Windows

ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu"),
    "Pacific/Apia",
)
DAY_S = 86400.0


def at(text: str) -> float:
    """A moment of UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("every", "shortest", "longest"), [("day", 23, 25), ("week", 167, 169), ("month", 671, 745)])
def test_windows_follow_each_other(zone: str, every: Every, shortest: int, longest: int) -> None:
    """From 2010 to 2019, where Samoa has left out a day and São Paulo has had days without midnight."""
    windows = Windows(every, zone)
    moment = at("2010-01-01")
    names = set()
    while moment < at("2019-12-31"):
        window = windows.at(moment)
        assert window.ends_at is not None
        assert window.begins_at <= moment < window.ends_at
        hours = (window.ends_at - window.begins_at) / 3600
        has_lost_a_day = zone == "Pacific/Apia" and window.name[:7] == "2011-12"
        assert shortest - 24 * has_lost_a_day <= hours <= longest
        assert window.name not in names
        names.add(window.name)
        following = windows.at(window.ends_at)
        assert following.begins_at == window.ends_at
        moment = window.ends_at


@pytest.mark.parametrize(
    ("zone", "inside", "name", "begins", "ends"),
    [
        # Clocks are set back on the last Sunday of October, in 2027 the month's last day, and ahead on that of March.
        ("Europe/Berlin", "2027-10-31T12:00", "2027-10-01", "2027-09-30T22:00", "2027-10-31T23:00"),
        ("Europe/Berlin", "2030-03-31T12:00", "2030-03-01", "2030-02-28T23:00", "2030-03-31T22:00"),
        # Set back on the first Sunday of November, in 2026 the month's first day.
        ("America/New_York", "2026-11-01T05:30", "2026-11-01", "2026-11-01T04:00", "2026-12-01T05:00"),
        ("America/New_York", "2026-11-01T06:30", "2026-11-01", "2026-11-01T04:00", "2026-12-01T05:00"),
        ("America/New_York", "2026-11-01T03:59", "2026-10-01", "2026-10-01T04:00", "2026-11-01T04:00"),
        # Samoa has left out the 30th of December 2011 and has changed its clocks until 2021.
        ("Pacific/Apia", "2011-12-31T00:00", "2011-12-01", "2011-12-01T10:00", "2011-12-31T10:00"),
        ("Asia/Kathmandu", "2026-11-30T18:14", "2026-11-01", "2026-10-31T18:15", "2026-11-30T18:15"),
        ("Asia/Kathmandu", "2026-11-30T18:15", "2026-12-01", "2026-11-30T18:15", "2026-12-31T18:15"),
    ],
)
def test_a_month_ends_at_local_midnight_where_clocks_change(
    zone: str, inside: str, name: str, begins: str, ends: str
) -> None:
    """On its first day or its last, ahead or back."""
    window = Windows("month", zone).at(at(inside))

    assert (window.name, window.begins_at, window.ends_at) == (name, at(begins), at(ends))


def test_weeks_begin_on_mondays() -> None:
    """As ISO 8601 has them."""
    assert Windows("week", "UTC").at(at("2026-11-22T23:59:59")).name == "2026-11-16"
    assert Windows("week", "UTC").at(at("2026-11-23T00:00:00")).name == "2026-11-23"


def test_a_clock_that_is_set_back_comes_to_the_same_window_again() -> None:
    """So what was spent in it is still known."""
    windows = Windows("day", "UTC")
    today = windows.at(at("2026-11-22T23:59:59"))
    assert windows.at(at("2026-11-23T00:00:01")) != today
    assert windows.at(at("2026-11-22T23:59:58")) == today


def test_all_time_never_ends() -> None:
    """And has no name."""
    window = Windows("total", "UTC").at(at("2026-11-22"))
    assert (window.name, window.ends_at, window.first_day) == ("", None, None)
