"""What is stored keeps its age when the wall clock is set anew."""

from __future__ import annotations

from random import Random

import pytest

from policies.cache.entry import AnswerForm, Entry
from policies.cache.semantic.build import Semantics
from policies.cache.semantic.contracts import Question, StoredAnswer
from policies.cache.steady_wall import SteadyWallClock
from policies.cache.store_memory import MemoryEntryStore
from policies.schema import StoresPolicy
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


@pytest.mark.parametrize(("seconds", "is_there"), [(240.0, True), (360.0, False)])
@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_semantic_answers_end_at_their_time_when_the_wall_clock_jumps(
    jump_s: float, seconds: float, is_there: bool
) -> None:
    """An answer for five minutes is given for that long, give or take a tenth: set back by an hour, it was for more."""
    clock = FakeClock()
    answers = Semantics(StoresPolicy(), clock, Random(7)).shared.answers
    scope, entry = bytes(32), Entry(AnswerForm.JSON, b"{}", b"application/json", clock.wall())
    answers.put(StoredAnswer("id", Question(scope, scope, "what now"), "a", entry, "m", "k", clock.wall() + 300.0))
    clock.jump(jump_s)
    await clock.advance(seconds)

    assert [pair is not None for pair in await answers.get(scope, ["id"])] == [is_there]
