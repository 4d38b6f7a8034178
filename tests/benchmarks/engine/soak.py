"""Ten thousand random requests with aborts through one engine: does anything stay behind?

    python -m tests.benchmarks.engine.soak [--count 10000]

Speculation, a host tier and too few pages are on, so that sequences are preempted and pages evicted all the time.
What grows is looked for between the first fifth of the requests, when caches are warm, and the last.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path

from backends.engine.engine import Engine
from tests.support.engine.engine_load import run_load
from tests.support.engine.tiny_pair import make_pair, options
from tests.support.faults import at_most, none, report

_PAGE_BYTES = 32 * 1024
_RSS_LIMIT_MIB = 8.0
_PYTHON_LIMIT_KIB = 256.0


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _python_kib() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0] / 1024


def main() -> None:
    """Print the table; exit with 1 where a figure misses what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        pair = make_pair(Path(folder))
        given = options(
            pair,
            speculate="auto",
            kv_bytes=8 * _PAGE_BYTES,
            host_bytes=24 * _PAGE_BYTES,
            max_context=256,
            max_sequences=6,
        )
        engine = Engine(given, rng=random.Random(1))
        engine.start()
        num_threads = threading.active_count()
        tracemalloc.start()
        began = time.perf_counter()
        try:
            endings = run_load(engine, count // 5, seed=0)
            rss_mib, python_kib = _rss_mib(), _python_kib()
            endings += run_load(engine, count - count // 5, seed=1)
            rss_growth, python_growth = _rss_mib() - rss_mib, _python_kib() - python_kib
            statistics = engine.statistics()
            thread_growth = threading.active_count() - num_threads
        finally:
            engine.close()
    pool = statistics.scheduler.pool
    figures = [
        none("requests that did not end once", count - endings.total()),
        none("requests in hand afterwards", statistics.num_requests),
        none("pages in use afterwards", pool.num_used),
        none("steps that failed", statistics.steps.num_failed),
        none("threads more than before", thread_growth),
        at_most("Python memory grown", _PYTHON_LIMIT_KIB, python_growth, "KiB"),
        at_most("resident memory grown", _RSS_LIMIT_MIB, rss_growth, "MiB"),
    ]
    print(f"{count} requests in {time.perf_counter() - began:.0f} s, {statistics.steps.num_steps} steps; ", end="")
    print(f"ended {dict(endings)}; preempted {statistics.scheduler.num_preemptions}, evicted {pool.num_evictions},")
    print(f"from the host {pool.num_host_hits}, drafts accepted {sum(statistics.speculation.accepted.values())}")
    raise SystemExit(report(figures))


if __name__ == "__main__":
    main()
