"""The time by which things are taken away for good."""

from __future__ import annotations

from gateway.disk.settled_wall import SettledWallClock
from tests.support.clock import FakeClock

DAY_S = 86400.0


async def test_jump_ahead_is_believed_once_it_has_lasted() -> None:
    """Not before, whoever looks meanwhile; and one that is taken back has never been."""
    clock = FakeClock()
    settled, began = SettledWallClock(clock), clock.wall()
    clock.jump(40 * DAY_S)
    shown = []
    for _ in range(5):
        await clock.advance(110)
        shown.append(settled() - began)
    clock.jump(-40 * DAY_S)
    await clock.advance(50)
    assert settled() == clock.wall()
    assert shown == [110, 220, 330, 440, 550]

    clock.jump(40 * DAY_S)
    settled()
    await clock.advance(599)
    assert settled() == clock.wall() - 40 * DAY_S
    await clock.advance(1)
    assert settled() == clock.wall()


async def test_second_jump_is_as_doubtful_as_the_first() -> None:
    """A clock that goes on jumping is not believed for having been wrong for long."""
    clock = FakeClock()
    settled, began = SettledWallClock(clock), clock.wall()
    for _ in range(10):
        clock.jump(DAY_S)
        settled()
        await clock.advance(300)

    assert settled() == began + 3000


async def test_clock_that_is_set_back_or_a_little_is_right_at_once() -> None:
    """As one is that was wrong at the start, or goes too fast."""
    clock = FakeClock()
    settled = SettledWallClock(clock)
    clock.jump(-40 * DAY_S)
    assert settled() == clock.wall()
    for _ in range(100):
        clock.jump(30)
        await clock.advance(1)
        assert settled() == clock.wall()
