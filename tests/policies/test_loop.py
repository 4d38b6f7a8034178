"""Work that has to go on goes on through whatever it raises, and says so now and then."""

from __future__ import annotations

import asyncio
import logging

import pytest

from policies.failures import Failures
from policies.loop import Loop
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """A clock of the test's own."""
    return FakeClock()


async def test_loop_begins_again_after_each_failure_until_it_is_closed(clock: FakeClock) -> None:
    """An error, a cancellation of what it waits for, or an end: a second later it runs again. Closed, it stays so."""
    began: list[float] = []
    stranger: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stranger.cancel()

    async def work() -> None:
        began.append(clock.now())
        match len(began):
            case 1:
                raise ValueError("wrong")
            case 2:
                await stranger
            case 3:
                return
        await clock.sleep(1e9)

    loop = Loop("work", clock)
    task = loop.start(work)
    await clock.advance(10.0)
    is_alive = not task.done()
    await loop.aclose()
    await loop.aclose()
    await clock.advance(10.0)

    assert began == [1000.0, 1001.0, 1002.0, 1003.0]
    assert loop.failures.take() == 2
    assert is_alive
    assert task.cancelled()


async def test_loop_ends_by_what_is_no_exception(clock: FakeClock) -> None:
    """Nothing can go on after it, and its task says what it was."""

    class Poison(BaseException):
        pass

    async def work() -> None:
        raise Poison

    loop = Loop("work", clock)
    task = loop.start(work)
    await asyncio.wait([task])

    assert isinstance(task.exception(), Poison)


async def test_loop_of_a_service_ends_though_a_cancellation_was_lost(clock: FakeClock) -> None:
    """A client library that takes the first one for something else holds up nobody who closes."""
    num_lost = 0

    async def work() -> None:
        nonlocal num_lost
        try:
            await clock.sleep(1e9)
        except asyncio.CancelledError:
            num_lost += 1
        await clock.sleep(1e9)

    loop = Loop("work", clock, of_service=True)
    task = loop.start(work)
    await clock.advance(1.0)
    async with asyncio.timeout(5.0):
        was_running = await loop.aclose()

    assert num_lost == 1
    assert was_running
    assert task.cancelled()
    assert not await loop.aclose()


async def test_loop_of_a_service_tells_no_more_of_a_failure_than_its_kind(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The service may be away for long, and the text may hold its address with the password."""
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        raise ConnectionError("redis://:s3cret-canary@host")

    loop = Loop("work", clock, of_service=True)
    loop.start(work)
    await clock.advance(2.0)
    await loop.aclose()

    assert loop.failures.total == loop.failures.take() == 3
    assert {record.levelno for record in caplog.records if record.name == "policies.failures"} == {logging.DEBUG}
    assert "ConnectionError" in caplog.text
    assert "s3cret-canary" not in caplog.text


async def test_same_failure_is_told_once_a_minute_and_another_at_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """All are counted; a line says how many were left out before it."""
    failures = Failures("work", clock)

    def fail(error: Exception) -> None:
        try:
            raise error
        except type(error) as raised:
            failures.note(raised)

    for _ in range(100):
        fail(ValueError("one"))
        await clock.advance(0.1)
    fail(KeyError("another"))
    await clock.advance(60.0)
    fail(ValueError("one"))

    assert failures.take() == 102
    assert failures.take() == 0
    assert [record.getMessage() for record in caplog.records] == [
        "work failed and goes on",
        "work failed and goes on (99 more since the last line)",
        "work failed and goes on",
    ]
