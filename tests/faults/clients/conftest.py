"""A gateway that a module's clients share, and what is behind it for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faults import CaseServer, Setting, setting


@pytest.fixture(scope="module")
def plain() -> Iterator[Setting]:
    """A gateway."""
    with setting() as made:
        yield made


@pytest.fixture
async def upstream(plain: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(plain.ports[0]) as server:
        yield server
