"""What is stored keeps its age when the wall clock is set anew."""

from __future__ import annotations

import pytest

from policies.cache.steady_wall import SteadyWallClock
from policies.cache.store_memory import MemoryEntryStore
from tests.support.clock import FakeClock


class _SetAnew(FakeClock):
    """A clock whose wall time somebody sets."""

    jump_s = 0.0

    def wall(self) -> float:
        """Seconds since the Unix epoch, as they are believed to be now."""
        return super().wall() + self.jump_s


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_dates_go_on_when_the_wall_clock_jumps(jump_s: float) -> None:
    """By as much as time has passed."""
    clock = _SetAnew()
    wall = SteadyWallClock(clock)
    began = wall()
    clock.jump_s = jump_s
    await clock.advance(7)

    assert wall() - began == pytest.approx(7)
    assert MemoryEntryStore(1024, clock).wall() == pytest.approx(clock.wall())
