"""`python -m backends.engine.benchmark`: measures the engine's figures on this machine's CPU and prints a table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from backends.engine.benchmark import bf16, int8, overhead, prefix, ready, speculation
from backends.engine.benchmark.figure import BenchmarkFigure, MeasurementSetting
from backends.engine.benchmark.made_model import make_model
from backends.engine.benchmark.report import as_json, as_text, machine

MEASUREMENTS: dict[str, Callable[[MeasurementSetting], list[BenchmarkFigure]]] = {
    "bf16": bf16.measure,
    "int8": int8.measure,
    "overhead": overhead.measure,
    "speculation": speculation.measure,
    "prefix": prefix.measure,
    "ready": ready.measure,
}
_PAIR = Path(__file__).parent.parent / "demo_models"


def main(arguments: list[str]) -> int:
    """Runs what was asked for. 0 where every figure holds that could be measured, 1 where one is missed."""
    asked = _parser().parse_args(arguments)
    on = machine(asked.threads)
    began = time.perf_counter()

    def say(line: str) -> None:
        sys.stderr.write(f"[{time.perf_counter() - began:4.0f} s] {line}\n")

    figures: list[BenchmarkFigure] = []
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        say("making a model of 77 million random weights")
        make_model(Path(folder))
        setting = MeasurementSetting(
            folder=Path(folder),
            pair=_PAIR if (_PAIR / "target" / "config.json").is_file() else None,
            threads=asked.threads,
            num_rounds=asked.rounds,
            seconds=asked.seconds,
            say=say,
        )
        for name in asked.only or MEASUREMENTS:
            figures += MEASUREMENTS[name](setting)
    sys.stdout.write(as_text(figures, on) + "\n")
    if asked.json is not None:
        asked.json.write_text(as_json(figures, on) + "\n", encoding="utf-8")
    return int(any(figure.holds is False for figure in figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m backends.engine.benchmark", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MEASUREMENTS), help="measure this; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--threads", type=int, default=2, help="threads of everyone who is measured (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison at most (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="after which a comparison begins no further round (default 30)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
