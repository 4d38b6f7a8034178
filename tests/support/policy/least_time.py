"""How long something takes at its best, for tests that compare two ways in one run."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_s(call: Callable[[], object], times: int = 50, rounds: int = 7) -> float:
    """Seconds of CPU of `times` calls, in the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        before = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, time.thread_time() - before)
    return best
