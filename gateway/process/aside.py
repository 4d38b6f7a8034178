"""Long work beside the event loop, in a thread that hardly delays it. For what is made anew as a whole: a policy."""

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
"""Collections of the youngest generation before one of the others: a pass over these would stop the loop for as long as
they have objects, and what is being made is no garbage."""


async def run_aside(work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread of its own. One at a time, please.

    What there is afterwards is taken for what stays, and left out of every later pass of the collector: the first one
    would stop the loop for as long as the result is large. A result that goes with its last reference goes as ever.
    """
    with without_full_collections():
        try:
            return await asyncio.to_thread(work)
        finally:
            gc.freeze()


@contextmanager
def without_full_collections() -> Iterator[None]:
    """No pass over more than the youngest objects meanwhile; what dies young is collected as ever."""
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], _NEVER, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
