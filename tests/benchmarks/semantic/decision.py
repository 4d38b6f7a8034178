"""`python -m tests.benchmarks.semantic.decision`: what the verified decision does where answers can hardly be compared.

It replays labelled questions in process: as they come, with a tenth of the answers changing at half, and with half of
the meanings coming in the second half only. Comparisons know the truth, are graded, or miss as many same answers as
looks without a trained reader do. Prints percent of look-ups, over seeds; windows are the worst of any.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.benchmark.contenders import Pooled
from policies.cache.semantic.benchmark.replay import ReplayCounts, replay
from policies.cache.semantic.benchmark.streams import LabelledSet, drifting, read_set, returning, shuffled
from policies.cache.semantic.benchmark.upstream import Noise, Upstream
from policies.cache.semantic.benchmark.vectors import encode_all
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.verified import Verified

COMPARISONS = {"truth": Noise(), "graded": Noise(distance=3.1), "seldom": Noise(missed=0.383)}
STREAMS = ("steady", "change", "drift")


def main(arguments: list[str]) -> int:
    """Measures. 0."""
    asked = _parser().parse_args(arguments)
    print(f"{'':<26} {'hits':>6} {'least':>6} {'wrong':>6} {'worst':>6} {'500':>5} {'1000':>5} {'last':>5}")
    for name in asked.set:
        rows = read_set(asked.data, name)
        vectors = encode_all(rows.texts, asked.vectors, name, lambda done, of: None)
        for stream in STREAMS:
            for comparison, noise in COMPARISONS.items():
                made = [_replay(rows, vectors, stream, noise, seed) for seed in range(1, asked.seeds + 1)]
                print(f"{name:<10} {stream:<7} {comparison:<7} {_row(made)}", flush=True)
    return 0


def _replay(
    rows: LabelledSet, vectors: dict[str, NDArray[np.float32]], stream: str, noise: Noise, seed: int
) -> ReplayCounts:
    order = drifting if stream == "drift" else returning if rows.name == "templates" else shuffled
    questions = order(rows, vectors, seed)
    changes_at = len(questions.asked) // 2 if stream == "change" else None
    upstream = Upstream(questions.meanings, Random(seed), noise, changes_at=changes_at)
    return replay(questions, Pooled(questions, upstream, Verified(Bound(0.01), Random(seed + 1))), upstream)


def _row(made: list[ReplayCounts]) -> str:
    hits, wrong = [100 * one.hit_rate for one in made], [100 * one.wrong_rate for one in made]
    return (
        f"{sum(hits) / len(made):6.1f} {min(hits):6.1f} {sum(wrong) / len(made):6.2f} {max(wrong):6.2f} "
        f"{max(one.worst_500 for one in made) / 5:5.1f} {max(one.worst_1000 for one in made) / 10:5.1f} "
        f"{sum(one.last_hits for one in made) / len(made) / 5:5.0f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.semantic.decision", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="where <set>_*.jsonl.gz lie")
    parser.add_argument("--vectors", type=Path, required=True, metavar="FOLDER", help="keep the texts' vectors there")
    parser.add_argument("--set", action="append", required=True, choices=["banking77", "clinc150", "templates"])
    parser.add_argument("--seeds", type=int, default=3, help="streams of each kind")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
