"""What is due at the end of calls is done for all of a turn of the event loop, once each and in order."""

from __future__ import annotations

import asyncio

from policies.failures import Failures
from policies.turn_end import TurnEnd
from tests.support.clock import FakeClock


async def test_all_of_a_turn_is_done_before_what_the_loop_is_told_of_later() -> None:
    """So a client that has its answer finds done what was due for it, with its next request."""
    done: list[str] = []
    at_end = TurnEnd(done.append, Failures("test", FakeClock()))

    at_end.add("first")
    asyncio.get_running_loop().call_soon(done.append, "next request")
    at_end.add("second")
    assert not done
    await asyncio.sleep(0)

    assert done == ["first", "second", "next request"]


async def test_one_that_fails_keeps_nothing_from_the_others_and_nothing_is_done_twice() -> None:
    """It is noted; whoever cannot wait for the end of the turn has it done at once."""
    done: list[float] = []
    failures = Failures("test", FakeClock())
    at_end = TurnEnd(lambda number: done.append(1 / number), failures)

    for number in (1, 0, 2):
        at_end.add(number)
    assert at_end.flush()
    assert not at_end.flush()
    await asyncio.sleep(0)

    assert done == [1.0, 0.5]
    assert failures.total == 1
