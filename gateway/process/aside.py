"""Runs long work, such as building a policy's runtime, in a thread that hardly delays the event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.0005
"""How long a thread may compute before the event loop gets its turn: the switch interval of a process that serves.
Python's own 5 ms would come several times in a request: each time that it has waited for a socket."""
_NEVER = 1_000_000
"""Collections of the youngest generation before one of an older generation. A pass over the older ones would stop the
event loop for a time that grows with their objects, and would find nothing: what is being built is in use."""


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


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Meanwhile the garbage collector passes over the youngest generation only."""
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], _NEVER, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
