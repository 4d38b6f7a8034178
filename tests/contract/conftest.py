"""Each contract test runs once for every backend in `tests.support.backend_cases.CASES`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.backend_cases import CASES, BackendCase


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
async def case(request: pytest.FixtureRequest) -> AsyncIterator[BackendCase]:
    """A backend that is open, with its upstream's strings."""
    async with request.param() as case:
        yield case
