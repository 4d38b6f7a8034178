"""Fixtures and settings of the whole suite. Sockets left open are errors too: every ResourceWarning is one."""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.clock import FakeClock
from tests.support.servers.openai_server import OpenAIServer

settings.register_profile("suite", max_examples=100, deadline=None)
settings.register_profile("long", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

_TOO_LATE = r"^AssertionError: (\(.*\)\n)?assert [-+*/ ().\de]+ <|^TimeoutError"
"""What Pytest says where one number was not below another, or a wait was over before what it was for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The kernels' first, which take minutes each: of several processes none is then left with them at the end. Those
    that are marked `alone` last, when nobody is busy for so long that the others stand still.

    A machine that others share may stand still for a second, and nothing is late then by its own fault. Those that are
    marked `timed` are tried anew where a time was above its limit; a limit that does not hold never does.
    """
    for item in items:
        if item.get_closest_marker("timed") is not None:
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=_TOO_LATE))
    kernels = Path(__file__).parent / "kernels"
    items.sort(key=lambda item: (item.get_closest_marker("alone") is not None, kernels not in item.path.parents))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is marked `alone` waits for those of other processes to end, and they wait for it."""
    with Path(__file__).open("rb") as shared:
        fcntl.flock(shared, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


@pytest.fixture
async def _task_guard() -> AsyncIterator[None]:
    yield
    leaked = asyncio.all_tasks() - {asyncio.current_task()}
    # A task that has just been cancelled may still need its last turn.
    if leaked:
        await asyncio.wait(leaked, timeout=0.05)
    still_running = [task for task in leaked if not task.done()]
    assert not still_running, f"the test left tasks running: {still_running}"


@pytest.fixture(autouse=True)
def _no_leaked_tasks(request: pytest.FixtureRequest) -> None:
    """Fail an async test that leaves a task behind; set up first, so it looks after every other fixture is gone."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_task_guard")


@pytest.fixture(autouse=True)
def _no_leaked_settings() -> Iterator[None]:
    """Fail a test that leaves settings of a gateway in this process, where those after it would find them."""
    before = _settings_here()
    yield
    assert _settings_here() == before, "the test left settings in the environment: serve in a process of its own"


def _settings_here() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("SLIPSTREAM_")}


@pytest.fixture
def clock() -> FakeClock:
    """Time that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """A scriptable upstream on a free port."""
    async with OpenAIServer() as server:
        yield server
