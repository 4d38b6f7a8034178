"""Runs long work, such as building a policy's runtime, in a thread that hardly delays the event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import TypeVar

from gateway.process.garbage import without_full_collections

T = TypeVar("T")

TURN_S = 0.0005
"""How long a thread may compute before the event loop gets its turn: the switch interval of a process that serves.
Python's own 5 ms would come several times in a request: each time that it has waited for a socket."""


async def run_aside(work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread of its own. Callers run one at a time.

    All objects that exist afterwards are taken for permanent, and the garbage collector leaves them out of every later
    pass: the first pass over a large result would stop the event loop. Reference counting still frees the result.
    """
    with without_full_collections():
        try:
            return await asyncio.to_thread(work)
        finally:
            gc.freeze()
