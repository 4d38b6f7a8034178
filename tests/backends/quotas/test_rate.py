"""A declared rate: no minute sees more of it, nothing waits for ever, and it is used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.quotas.rate import MinuteRate


def most_in_a_minute(times: list[float]) -> int:
    """The most of these in any window of 60 s."""
    return max((sum(1 for later in times if at <= later < at + 60) for at in times), default=0)


@settings(deadline=None)
@given(
    st.integers(1, 200),
    st.floats(0.01, 30),
    st.lists(st.floats(0, 20), min_size=1, max_size=60),
    st.lists(st.floats(0, 0.9), min_size=1, max_size=7),
)
def test_no_minute_sees_more_than_was_declared(
    per_minute: int, burst_s: float, pauses: list[float], delays: list[float]
) -> None:
    """Whenever callers come, and however long each is on its way, below a second."""
    rate = MinuteRate(per_minute, burst_s, 0.0, step=1)
    now, arrived = 0.0, []
    for number in range(3 * per_minute + len(pauses)):
        now += pauses[number] if number < len(pauses) else 0.0
        now += rate.wait_s(1, now)
        rate.take(1, now)
        arrived.append(now + delays[number % len(delays)])

    assert most_in_a_minute(sorted(arrived)) <= per_minute


@given(st.integers(1, 10**6), st.floats(0.01, 30), st.floats(0, 10**7), st.integers(0, 1))
def test_what_waits_goes_when_it_was_told(per_minute: int, burst_s: float, wanted: float, step: int) -> None:
    """Also what is larger than all that ever goes at once."""
    rate = MinuteRate(per_minute, burst_s, 0.0, step=step)
    rate.take(wanted, 0.0)
    wait_s = rate.wait_s(wanted, 0.0)

    assert rate.wait_s(wanted, wait_s + 1e-3 + wait_s * 1e-9) == 0
    assert wait_s == 0 or rate.wait_s(wanted, wait_s * 0.99 - 1e-3) > 0


@pytest.mark.parametrize(("burst_s", "at_least"), [(6.0, 0.88), (1.0, 0.96), (30.0, 0.48)])
def test_the_rate_is_used_up_to_what_may_come_at_once(burst_s: float, at_least: float) -> None:
    """Over an hour of calls that always wait."""
    rate = MinuteRate(600, burst_s, 0.0, step=1)
    now, sent = 0.0, 0
    while now < 3600:
        now += rate.wait_s(1, now)
        rate.take(1, now)
        sent += 1

    assert at_least <= sent / 36_000 <= 1


def test_what_was_not_used_comes_back_and_no_more_than_fits() -> None:
    """And what was used beyond is waited for."""
    rate = MinuteRate(600, 6.0, 0.0)
    rate.take(60, 0.0)
    rate.give_back(1000)
    full = rate.level(0.0)
    rate.give_back(-90)

    assert full == 60
    assert rate.level(0.0) == -30
    assert rate.wait_s(1, 0.0) == pytest.approx(31 / (540 / 61))


def test_a_share_is_a_part_of_what_was_declared() -> None:
    """Four processes together send what one would."""
    rates = [MinuteRate(600, 6.0, 0.0, step=1) for _ in range(4)]
    sent = 0
    for rate in rates:
        rate.share_among(4)
        rate.share_among(4)
        now = 0.0
        while now < 600:
            now += rate.wait_s(1, now)
            rate.take(1, now)
            sent += 1

    assert 0.88 * 6000 <= sent <= 6000
