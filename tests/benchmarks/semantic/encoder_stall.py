"""How late the gateway's event loop is while the encoder works at capacity.

    python -m tests.benchmarks.semantic.encoder_stall [--kind onnx --cache DIR] [--seconds 10] [--in-thread]

A task on the loop sleeps 1 ms again and again and notes by how much each sleep took longer: once without load, once
while 16 callers ask for new texts without a pause. --in-thread computes in a thread of this process instead of the
encoder's own process, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import uvloop
from numpy.typing import NDArray

from backends.clock import SystemClock
from backends.protocol import Facts
from gateway.process.aside import TURN_S
from policies.cache.semantic.encoder.batched import BatchingEncoder, ModelIdentity, TextModel
from policies.cache.semantic.encoder.child import Load, _load
from policies.cache.semantic.encoder.process import ProcessModel
from policies.cache.semantic.sameness.reader import Compared
from tests.benchmarks.semantic.lookup import questions
from tests.support.faults import at_most, percentile, report

_TICK_S = 0.001
_LIMIT_MS = 10.0
_IDLE_S = 2.0
_NUM_CALLERS = 16


class _ThreadModel:
    """The same model in a thread: what the encoder does not do."""

    def __init__(self, load: Load) -> None:
        self._model = _load(load)
        self._thread = ThreadPoolExecutor(1)

    async def open(self) -> ModelIdentity:
        return ModelIdentity(self._model.dimension, self._model.fingerprint)

    async def embed(self, texts: Sequence[str], facts: Facts) -> NDArray[np.float32]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._model.embed, list(texts))

    async def compare(self, left: str, right: str) -> Compared:
        return Compared(is_done=True)

    async def aclose(self) -> None:
        self._thread.shutdown()


async def _tick(seconds: float) -> list[float]:
    """By how many milliseconds each sleep of 1 ms was late."""
    lags = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        await asyncio.sleep(_TICK_S)
        lags.append((time.monotonic() - began - _TICK_S) * 1e3)
    return lags


async def _measure(model: TextModel, seconds: float) -> tuple[list[float], list[float], float, float]:
    """Lags without load and with it, texts a second, and the share of one processor that the loop's thread used."""
    encoder = BatchingEncoder(model, SystemClock())
    await encoder.open()
    idle = await _tick(_IDLE_S)
    texts = questions(10_000)
    numbers = itertools.count()

    async def ask() -> None:
        while True:
            number = next(numbers)
            await encoder.encode(f"{texts[number % len(texts)]} {number}")

    callers = [asyncio.ensure_future(ask()) for _ in range(_NUM_CALLERS)]
    began, used = time.monotonic(), time.thread_time()
    busy = await _tick(seconds)
    elapsed, used = time.monotonic() - began, time.thread_time() - used
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    rate = encoder.statistics().encoded / elapsed
    await encoder.aclose()
    return idle, busy, rate, used / elapsed


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--kind", choices=["torch", "onnx"], default="torch", help="torch or onnx (default torch)")
    options.add_argument("--cache", help="where the int8 form is kept (onnx)")
    options.add_argument("--model", help="a folder or name (default: the ready-made model)")
    options.add_argument("--threads", type=int, default=1, help="of the encoder (default 1)")
    options.add_argument("--seconds", type=float, default=10.0, help="how long to load it (default 10)")
    options.add_argument("--in-thread", action="store_true", help="compute in a thread of this process")
    given = options.parse_args()
    load = Load(given.model, given.kind, given.threads, given.cache and str(Path(given.cache)))
    sys.setswitchinterval(TURN_S)
    model: TextModel = _ThreadModel(load) if given.in_thread else ProcessModel(load, SystemClock())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        idle, busy, rate, share = runner.run(_measure(model, given.seconds))
    for what, lags in (("idle", idle), ("capacity", busy)):
        middle, late = percentile(lags, 0.5), percentile(lags, 0.99)
        print(f"{what:8} p50 {middle:6.2f}  p99 {late:6.2f}  max {max(lags):6.2f} ms, of {len(lags)} ticks")
    print(f"{rate:.0f} texts/s; the loop's thread used {share:.1%} of a processor")
    return report([at_most("lag of the event loop, p99", _LIMIT_MS, percentile(busy, 0.99), "ms")])


if __name__ == "__main__":
    sys.exit(main())
