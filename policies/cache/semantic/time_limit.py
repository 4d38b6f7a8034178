"""A time limit that costs nothing where there is nothing to wait for, as in most look-ups."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def within(limit_s: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which begins at once; the limit is set where it has to wait for the first time.

    A vector that is remembered and a search in this process wait for nothing, and `asyncio.timeout` costs them 10 us
    each. Raises: TimeoutError; what `work` raises.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(limit_s):
        return await _rest(work, waits_for)


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], waits_for: object) -> Generator[Any, Any, T]:
    """What `work` does from its first wait on."""
    while True:
        try:
            try:
                got = yield waits_for
            except BaseException as error:
                # A cancellation, or the end of the loop: it is for `work` to clean up after.
                waits_for = work.throw(error)
            else:
                waits_for = work.send(got)
        except StopIteration as done:
            result: T = done.value
            return result
