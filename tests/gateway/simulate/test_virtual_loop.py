"""The event loop of simulations: order, time, and that it never waits."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulate.virtual_loop import START_WALL_S, Deadlock, VirtualClock, VirtualLoop


@given(st.lists(st.integers(0, 20), max_size=40))
def test_virtual_loop_timers_run_by_moment_then_by_age(delays: list[int]) -> None:
    """Timers run in order of their moments, those of the same moment in the order in which they were made."""
    loop = VirtualLoop()
    ran: list[tuple[float, int]] = []

    async def main() -> None:
        for number, delay in enumerate(delays):
            loop.call_later(delay, lambda number=number: ran.append((loop.time(), number)))
        await asyncio.sleep(21)

    loop.run_until_complete(main())

    assert ran == sorted((float(delay), number) for number, delay in enumerate(delays))


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=400))
def test_virtual_loop_cancelled_timers_never_run(timers: list[tuple[int, bool]]) -> None:
    """Cancelling takes out that timer and no other, however many there are."""
    loop = VirtualLoop()
    ran: list[int] = []

    async def main() -> None:
        handles = [loop.call_later(delay, ran.append, number) for number, (delay, _) in enumerate(timers)]
        for handle, (_, is_cancelled) in zip(handles, timers, strict=True):
            if is_cancelled:
                handle.cancel()
        await asyncio.sleep(10)

    loop.run_until_complete(main())

    assert sorted(ran) == [number for number, (_, is_cancelled) in enumerate(timers) if not is_cancelled]


@pytest.mark.timed
def test_virtual_loop_years_pass_at_once() -> None:
    """No time of the world passes while virtual time does."""
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    began = time.perf_counter()

    loop.run_until_complete(clock.sleep(10 * 365 * 86400.0))

    assert (clock.now(), clock.wall()) == (315_360_000.0, START_WALL_S + 315_360_000.0)
    assert time.perf_counter() - began < 1.0


def test_virtual_loop_runs_what_asyncio_builds_on_loops() -> None:
    """Groups, timeouts, events and cancellation work as elsewhere."""
    loop = VirtualLoop()

    async def main() -> list[object]:
        event = asyncio.Event()
        seen: list[object] = []

        async def waiter() -> None:
            await event.wait()
            seen.append(loop.time())

        async with asyncio.TaskGroup() as group:
            group.create_task(waiter())
            loop.call_later(3, event.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.sleep(100)
        task = asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(0)
        task.cancel()
        seen.append(await asyncio.gather(task, asyncio.sleep(1, "done"), return_exceptions=True))
        return [*seen, loop.time()]

    event_at, (cancelled, done), ended_at = loop.run_until_complete(main())

    assert (event_at, done, ended_at) == (3.0, "done", 6.0)
    assert isinstance(cancelled, asyncio.CancelledError)


def test_virtual_loop_nothing_left_to_happen_is_an_error() -> None:
    """Waiting for what never comes ends, instead of hanging."""
    loop = VirtualLoop()

    async def main() -> None:
        await asyncio.sleep(2)
        await loop.create_future()

    with pytest.raises(Deadlock, match="after 2 virtual seconds"):
        loop.run_until_complete(main())
    loop.close()


def test_virtual_loop_error_in_a_callback_ends_the_run() -> None:
    """A mistake nobody handles is not swallowed."""
    loop = VirtualLoop()
    loop.call_later(1, lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(asyncio.sleep(5))


def test_virtual_loop_has_no_threads() -> None:
    """What would wait for the world is refused."""
    loop = VirtualLoop()

    async def main() -> None:
        await asyncio.to_thread(time.sleep, 1)

    with pytest.raises(NotImplementedError):
        loop.run_until_complete(main())


def test_virtual_loop_closed_takes_nothing_more() -> None:
    """After `close` timers and tasks are refused."""
    loop = VirtualLoop()
    loop.close()

    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)
