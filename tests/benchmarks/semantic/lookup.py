"""What a semantic look-up adds to a miss: encoding the question and searching the index.

    python -m tests.benchmarks.semantic.lookup [--kind onnx --cache DIR] [--entries 10000] [--lookups 300]

Questions of 14 tokens, one thread of the encoder's process, one group of 10,000 entries. Every question is new, so the
encoder's memory of texts helps none.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import NamedTuple

import numpy as np

from backends.clock import SystemClock
from policies.cache.semantic.contracts import Question
from policies.cache.semantic.encoder.batched import BatchingEncoder
from policies.cache.semantic.encoder.child import Load
from policies.cache.semantic.encoder.process import ProcessModel
from policies.cache.semantic.index.memory import MemoryIndex
from tests.support.faults import at_most, percentile, report

LIMIT_MS = {"torch": 13.0, "onnx": 3.5}
_COUNT = 5
_VERBS = ("change", "cancel", "check", "find", "block", "order", "return", "replace", "update", "close")
_THINGS = ("card", "order", "account", "address", "payment", "ticket", "phone", "booking", "plan", "code")


class LookupTimes(NamedTuple):
    """Milliseconds of each look-up: in all, and the parts of it."""

    total: list[float]
    encode: list[float]
    search: list[float]


def questions(count: int) -> list[str]:
    """Texts of 14 tokens, the first and the last token of the model included; all different."""
    return [
        f"how can I {_VERBS[number % 10]} the {_THINGS[number // 10 % 10]} that I have {_VERBS[number // 100 % 10]} "
        f"{_THINGS[number // 1000 % 10]}?"
        for number in range(count)
    ]


async def measure(load: Load, *, entries: int, lookups: int) -> LookupTimes:
    """Fill an index, then look up one question after the other, as a route with one call at a time would."""
    encoder = BatchingEncoder(ProcessModel(load, SystemClock()), SystemClock())
    await encoder.open()
    index = MemoryIndex(encoder.dimension, encoder.fingerprint, SystemClock())
    await index.open()
    scope = Question(scope=bytes(32), group=bytes(32), text="")
    vectors = np.random.default_rng(1).standard_normal((entries, encoder.dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for number, vector in enumerate(vectors):
        index.add(scope, f"{number:032x}", vector)
    await index.wait_built()
    times = LookupTimes([], [], [])
    try:
        for text in questions(lookups):
            began = time.perf_counter()
            vector = await encoder.encode(text)
            encoded = time.perf_counter()
            await index.search(scope, vector, _COUNT)
            ended = time.perf_counter()
            times.total.append((ended - began) * 1e3)
            times.encode.append((encoded - began) * 1e3)
            times.search.append((ended - encoded) * 1e3)
    finally:
        await index.aclose()
        await encoder.aclose()
    return times


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--kind", choices=["torch", "onnx"], default="torch", help="torch or onnx (default torch)")
    options.add_argument("--cache", help="where the int8 form is kept (onnx)")
    options.add_argument("--model", help="a folder or name (default: the ready-made model)")
    options.add_argument("--threads", type=int, default=1, help="of the encoder (default 1)")
    options.add_argument("--entries", type=int, default=10_000, help="in the index (default 10000)")
    options.add_argument("--lookups", type=int, default=300, help="how many are timed (default 300)")
    given = options.parse_args()
    load = Load(given.model, given.kind, given.threads, given.cache)
    times = asyncio.run(measure(load, entries=given.entries, lookups=given.lookups))
    for name, values in times._asdict().items():
        print(f"{name:7} p50 {percentile(values, 0.5):6.2f}  p99 {percentile(values, 0.99):6.2f} ms")
    middle = percentile(times.total, 0.5)
    return report([at_most(f"look-up added to a miss ({given.kind}), p50", LIMIT_MS[given.kind], middle, "ms")])


if __name__ == "__main__":
    sys.exit(main())
