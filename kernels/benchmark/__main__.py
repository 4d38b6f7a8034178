"""`python -m kernels.benchmark`: checks every kernel on this machine's GPU, times it, and prints a table."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from kernels.benchmark.bars import BARS, judge
from kernels.benchmark.report import as_json, as_text
from kernels.dispatch import op_names

NO_GPU = 2
"""The exit code where there is nothing to measure on."""


def main(arguments: list[str]) -> int:
    """0 where every result is right and no bar is missed, 1 where one is, 2 where there is no GPU or no Triton."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    missing = _missing()
    if missing is not None:
        sys.stderr.write(f"{missing}\n")
        return NO_GPU
    if asked.json is not None:
        try:
            asked.json.touch()
        except OSError as error:
            parser.error(f"--json cannot be written: {error}")
    from kernels.benchmark.run import run

    found = run(asked.only or op_names(), seconds=asked.seconds)
    verdicts = judge(BARS, found.measurements, found.copy_gb_per_s)
    sys.stdout.write(as_text(found, verdicts) + "\n")
    if asked.json is not None:
        asked.json.write_text(as_json(found, verdicts) + "\n", encoding="utf-8")
    return int(bool(found.problems) or any(verdict.is_met is False for verdict in verdicts))


def _missing() -> str | None:
    """What is missing to measure anything at all."""
    if not torch.cuda.is_available():
        return (
            "There is no CUDA GPU here, so nothing was measured. What the kernels compute and what they compile to is "
            "tested without one: python -m pytest tests/kernels"
        )
    if find_spec("triton") is None:
        return "Triton is not installed, so there are no kernels to measure: pip install triton"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.benchmark", description=__doc__)
    parser.add_argument("--only", action="append", choices=op_names(), help="measure this; may be repeated")
    parser.add_argument(
        "--seconds",
        type=float,
        default=540.0,
        help="after which nothing more is begun; bars come first (default %(default)g)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
