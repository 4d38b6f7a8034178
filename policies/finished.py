"""What must not be left half done, though whoever asked for it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def finished(work: Awaitable[_T]) -> _T:
    """The result of the work. Who is cancelled meanwhile waits until it is done, and is told nothing of how it ended.

    Raises: as the work does.
    """
    done = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        if not done.cancelled():
            # Asked for, so that it is not logged as an error that nobody has seen.
            done.exception()
        raise
