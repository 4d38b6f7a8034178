"""The time limit of a look-up: what waits for nothing, what waits, what waits too long."""

from __future__ import annotations

import asyncio

import pytest

from policies.cache.semantic.time_limit import within


async def test_within_of_work_that_waits_for_nothing_takes_no_turn_of_the_loop() -> None:
    """Whatever is due on the loop meanwhile comes later, even with no time allowed."""
    happened: list[str] = []

    async def work() -> str:
        happened.append("worked")
        return "done"

    asyncio.get_running_loop().call_soon(happened.append, "turn")

    assert await within(0.0, work()) == "done"
    assert happened == ["worked"]


async def test_within_of_work_that_waits_gives_what_it_waited_for() -> None:
    """Several waits, of tasks and of bare turns of the loop."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        await asyncio.sleep(0)
        first = await answer
        await asyncio.sleep(0)
        return first + 1

    asyncio.get_running_loop().call_soon(answer.set_result, 41)

    assert await within(5.0, work()) == 42


async def test_within_too_long_ends_the_work_and_says_so() -> None:
    """The work cleans up, with waits of its own, before the caller is told."""
    happened: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            happened.append("cleaned up")

    with pytest.raises(TimeoutError):
        await within(0.001, work())

    assert happened == ["cleaned up"]


async def test_within_cancelled_from_outside_stays_a_cancellation() -> None:
    """It reaches the work, and is no timeout."""
    happened: list[str] = []

    async def work() -> None:
        try:
            happened.append("waits")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            happened.append("cancelled")
            raise

    task = asyncio.ensure_future(within(5.0, work()))
    while not happened:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert happened == ["waits", "cancelled"]


@pytest.mark.parametrize("num_turns", [0, 2])
async def test_within_passes_on_what_the_work_raises(num_turns: int) -> None:
    """Before the first wait and after it."""

    async def work() -> None:
        for _ in range(num_turns):
            await asyncio.sleep(0)
        raise KeyError("away")

    with pytest.raises(KeyError, match="away"):
        await within(5.0, work())


async def test_within_lets_the_work_swallow_an_error_of_what_it_waits_for() -> None:
    """An error is thrown into the work where it waits, and its answer is then the result."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await answer
        except OSError:
            return "missed"
        return "found"

    asyncio.get_running_loop().call_soon(answer.set_exception, OSError("gone"))

    assert await within(5.0, work()) == "missed"
