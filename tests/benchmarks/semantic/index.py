"""How long a look-up takes and how much memory it all needs with a million entries in a hundred scopes.

    python -m tests.benchmarks.semantic.index [--precision sq8] [--entries 1000000] [--scopes 100] [--kept FILE]

Vectors are random mixtures around centres of their own, one group a scope. Memory is what the process grows by while
they are added, their ids included. With --kept the index is written there, closed, and loaded again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.clock import SystemClock
from policies.cache.semantic.contracts import Question
from policies.cache.semantic.index.memory import MemoryIndex
from policies.cache.semantic.index.rows import Precision
from tests.support.faults import Progress, at_most, percentile, report

_DIMENSION = 384
_NUM_CENTRES = 64
_LIMIT_MS = 2.0
_LIMIT_GB = {"fp16": 2.2, "sq8": 0.7}
_COUNT = 5


def _resident_gb() -> float:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096 / 1e9


def _question(scope: int) -> Question:
    return Question(scope=scope.to_bytes(32, "big"), group=scope.to_bytes(32, "little"), text="")


class _Vectors:
    """Unit vectors near some centres: neighbours exist, as among questions of one kind."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(1)
        self._centres = self._unit(self._generator.standard_normal((_NUM_CENTRES, _DIMENSION), np.float32))

    def draw(self, count: int) -> NDArray[np.float32]:
        """[count, 384]."""
        noise = self._generator.standard_normal((count, _DIMENSION), np.float32) / np.float32(_DIMENSION**0.5)
        return self._unit(self._centres[self._generator.integers(_NUM_CENTRES, size=count)] + noise)

    @staticmethod
    def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


async def _look_up(index: MemoryIndex, asked: NDArray[np.float32], scopes: int) -> list[float]:
    """Milliseconds of look-ups in scopes by turns: no two in a row find the same memory warm."""
    times = []
    for number, vector in enumerate(asked):
        began = time.perf_counter()
        found = await index.search(_question(number * 7 % scopes), vector, _COUNT)
        times.append((time.perf_counter() - began) * 1e3)
        assert len(found) == _COUNT
    return times


async def _measure(given: argparse.Namespace) -> int:
    vectors = _Vectors()
    asked = vectors.draw(given.lookups)
    precision: Precision = given.precision

    def make() -> MemoryIndex:
        return MemoryIndex(
            _DIMENSION,
            "benchmark",
            SystemClock(),
            precision=precision,
            max_entries=given.entries,
            snapshot=given.kept,
        )

    index = make()
    await index.open()
    before_gb = _resident_gb()
    progress = Progress(given.entries, "entries")
    for start in range(0, given.entries, 1000):
        for number, vector in enumerate(vectors.draw(min(1000, given.entries - start)), start):
            index.add(_question(number % given.scopes), f"{number:032x}", vector)
            progress.add()
        await asyncio.sleep(0)
    await index.wait_built()
    memory_gb = _resident_gb() - before_gb
    times = await _look_up(index, asked, given.scopes)
    statistics = index.statistics()
    print(
        f"{statistics.entries:,} entries, {statistics.groups} groups, {statistics.graphs} graphs, {precision}, "
        f"{memory_gb:.2f} GB"
    )
    middle, late = percentile(times, 0.5), percentile(times, 0.99)
    print(f"look-up p50 {middle:.2f}  p99 {late:.2f}  max {max(times):.2f} ms, of {len(times)}")
    began = time.monotonic()
    await index.aclose()
    if given.kept is not None:
        print(f"closed in {time.monotonic() - began:.1f} s, {given.kept.stat().st_size / 1e9:.2f} GB on disk")
        began = time.monotonic()
        again = make()
        await again.open()
        print(f"{again.statistics().entries:,} entries loaded in {time.monotonic() - began:.1f} s")
        await again.aclose()
    return report(
        [
            at_most("look-up, p50", _LIMIT_MS, middle, "ms"),
            at_most("memory", _LIMIT_GB[precision], memory_gb, "GB"),
        ]
    )


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--precision", choices=["fp16", "sq8"], default="fp16", help="fp16 or sq8 (default fp16)")
    options.add_argument("--entries", type=int, default=1_000_000, help="in all (default 1000000)")
    options.add_argument("--scopes", type=int, default=100, help="one group each (default 100)")
    options.add_argument("--lookups", type=int, default=2000, help="how many are timed (default 2000)")
    options.add_argument("--kept", type=Path, help="write it to this file, and load it again")
    return asyncio.run(_measure(options.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
