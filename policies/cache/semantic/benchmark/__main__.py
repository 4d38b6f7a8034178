"""`python -m policies.cache.semantic.benchmark`: replays labelled traffic through semantic caches and prints tables."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec

from backends.errors import ConfigurationError
from policies.cache.semantic.benchmark.contenders import CacheContender, Cosine, Exact, Pooled
from policies.cache.semantic.benchmark.figures import EXACT, NOISY, OURS, FigureRow, as_json, as_text, claims
from policies.cache.semantic.benchmark.replay import ReplayCounts, replay
from policies.cache.semantic.benchmark.streams import LabelledSet, QuestionStream, paired, read_set, returning, shuffled
from policies.cache.semantic.benchmark.upstream import Noise, Upstream
from policies.cache.semantic.benchmark.vcache import VCacheLike
from policies.cache.semantic.benchmark.vectors import encode_all
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.verified import Verified

SETS = ("banking77", "clinc150", "templates", "qqp", "sick")
"""What `--set` can name, as far as the data folder holds it."""

_DEFAULT_SETS = SETS[:4]
_NOISE = Noise(alarms=0.02, passed=0.05)
_NUM_CONTENDERS = 6


def main(arguments: list[str]) -> int:
    """Measures. 0 where all that is asked for holds, 1 where something is missed, 2 where it cannot be measured."""
    asked = _parser().parse_args(arguments)
    progress = ReplayProgress(sys.stderr.isatty())
    try:
        bound = Bound(asked.max_wrong_hit_rate)
        with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
            vectors = asked.vectors or Path(folder)
            rows = [
                row
                for name in asked.set or _DEFAULT_SETS
                for row in _measure(read_set(asked.data, name), vectors, bound, asked.seeds, progress)
            ]
    except (FileNotFoundError, ValueError, ConfigurationError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    progress.done()
    made = claims(rows)
    sys.stdout.write(as_text(rows, made) + "\n")
    if asked.json is not None:
        settings: dict[str, object] = {"max_wrong_hit_rate": asked.max_wrong_hit_rate, "seeds": asked.seeds}
        asked.json.write_text(as_json(rows, made, settings) + "\n", encoding="utf-8")
    return int(not all(claim.holds for claim in made))


class ReplayProgress:
    """One line on stderr that tells how far it is: a bar on a terminal, else a line for each part."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._label = ""

    def note(self, label: str, done: int, of: int) -> None:
        """So much of this part is done."""
        if self._is_terminal:
            bar = "#" * (30 * done // of)
            sys.stderr.write(f"\r{label:<32} [{bar:<30}] {done}/{of}\x1b[K")
        elif label != self._label:
            sys.stderr.write(f"{label}\n")
        self._label = label
        sys.stderr.flush()

    def done(self) -> None:
        """Leave a clean line."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")


def _measure(
    rows: LabelledSet, vectors: Path, bound: Bound, num_seeds: int, progress: ReplayProgress
) -> Iterator[FigureRow]:
    encoded = encode_all(
        rows.texts, vectors, rows.name, lambda done, of: progress.note(f"encoding {rows.name}", done, of)
    )
    order = paired if rows.pairs else returning if rows.name == "templates" else shuffled
    outcomes: dict[str, list[ReplayCounts]] = {}
    for seed in range(1, num_seeds + 1):
        stream = order(rows, encoded, seed)
        for number, (policy, make) in enumerate(_contenders(stream, bound, seed).items()):
            progress.note(f"{rows.name}, seed {seed}", number, _NUM_CONTENDERS)
            outcomes.setdefault(policy, []).append(make())
    for policy, of_seeds in outcomes.items():
        yield FigureRow(rows.name, policy, tuple(of_seeds))


def _contenders(stream: QuestionStream, bound: Bound, seed: int) -> dict[str, Callable[[], ReplayCounts]]:
    def run(make: Callable[[Upstream], CacheContender], noise: Noise | None = None) -> ReplayCounts:
        upstream = Upstream(stream.meanings, Random(seed), noise or Noise())
        contender = make(upstream)
        outcome = replay(stream, contender, upstream)
        if isinstance(contender, Pooled):
            return msgspec.structs.replace(outcome, cpu_us=1e6 * contender.cpu_s / max(1, contender.num_decided))
        return outcome

    def ours(upstream: Upstream) -> CacheContender:
        return Pooled(stream, upstream, Verified(bound, Random(seed + 1)))

    delta = bound.share
    return {
        EXACT: lambda: run(lambda upstream: Exact(stream, upstream)),
        "cosine 0.6": lambda: run(lambda upstream: Cosine(stream, upstream, 0.6)),
        "cosine 0.9": lambda: run(lambda upstream: Cosine(stream, upstream, 0.9)),
        "vCache-like": lambda: run(lambda upstream: VCacheLike(stream, upstream, Random(seed + 1), delta)),
        OURS: lambda: run(ours),
        NOISY: lambda: run(ours, _NOISE),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m policies.cache.semantic.benchmark", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="where <set>_*.jsonl.gz lie")
    parser.add_argument("--set", action="append", choices=list(SETS), help="measure this; may be repeated")
    parser.add_argument("--seeds", type=int, default=5, help="streams of each set")
    parser.add_argument("--max-wrong-hit-rate", type=float, default=0.01, help="the bound, of look-ups")
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="keep the texts' vectors there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
