"""Shared by the tests of what speaks HTTP; those of our own transport run on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from backends.clock import SystemClock
from backends.http.transport import Transport


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test of the transport once per event loop, all others on the standard one."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.stem.startswith("test_transport"):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    """Our transport, on real time; after the test nothing may be in flight."""
    transport = Transport(SystemClock())
    yield transport
    in_flight = sum(pool.statistics().in_flight for pool in transport._sweeper.pools)
    await transport.aclose()
    assert in_flight == 0, "an exchange was left open"
