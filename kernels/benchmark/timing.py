"""How long work on a GPU takes: captured as a CUDA graph and replayed, over buffers that caches cannot hold at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

Work = Callable[[], object]
"""Puts work on the current stream."""

_FEWEST_CALLS = 20
"""In one graph, so that the events at both ends do not count."""
_FEWEST_REPLAYS, _MOST_REPLAYS = 5, 50
_SECONDS = 0.15
"""After which no further replay is begun."""
_CACHES = 3
"""So many times what the second-level cache holds is gone through before a buffer is met again."""
_MOST_COPIES = 32
_COPY_BYTES = 2**30


def count_copies(num_bytes: int, cache_bytes: int) -> int:
    """How many sets of buffers of `num_bytes` it takes so that each is read from memory; _MOST_COPIES at most."""
    return max(1, min(_MOST_COPIES, math.ceil(_CACHES * cache_bytes / max(num_bytes, 1))))


def time_us(works: Sequence[Work]) -> float:
    """Microseconds of one of `works`, which do the same with buffers of their own: the median over the replays."""
    # A capture that fails leaves its stream the current one; this puts things right.
    with torch.cuda.stream(torch.cuda.current_stream()):
        return _time_us(works)


def _time_us(works: Sequence[Work]) -> float:
    stream: Any = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Compiles, picks configurations and allocates workspaces, none of which can be captured.
        for _ in range(2):
            for work in works:
                work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    laps = math.ceil(_FEWEST_CALLS / len(works))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(laps):
            for work in works:
                work()
    graph.replay()
    torch.cuda.synchronize()
    times_ms: list[float] = []
    while len(times_ms) < _FEWEST_REPLAYS or (len(times_ms) < _MOST_REPLAYS and sum(times_ms) < _SECONDS * 1e3):
        times_ms.append(_replay_ms(graph))
    graph.reset()
    return median(times_ms) * 1e3 / (laps * len(works))


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    start, end = events
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def copy_gb_per_s(device: torch.device) -> float:
    """What a kernel that copies 1 GiB reads and writes, in 10^9 bytes a second.

    `copy_` in a graph is the work of the copy engines, which reach two thirds of it on an H200.
    """
    source = torch.randint(0, 2**31 - 1, (_COPY_BYTES // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / time_us([lambda: torch.bitwise_not(source, out=target)]) / 1e3
