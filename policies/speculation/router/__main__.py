"""`python -m policies.speculation.router`: learns routers on labelled prompts, and prints what they would recover."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from backends.errors import ConfigurationError
from policies.speculation.router.evaluation import SHARES, Interval, RouterFigures, evaluate
from policies.speculation.router.labelled import read_labelled
from policies.speculation.router.progress import progress
from policies.speculation.router.prompt_vectors import encode_prompts


def main(arguments: list[str]) -> int:
    """Measures. 0 where it could, 2 where not."""
    asked = _parser().parse_args(arguments)
    try:
        rows = read_labelled(asked.labelled)
        with tempfile.TemporaryDirectory(prefix="slipstream-router-") as folder:
            vectors = encode_prompts([row.prompt for row in rows], asked.vectors or Path(folder), progress("encoding"))
        figures = []
        for name in dict.fromkeys(row.set for row in rows):
            places = np.array([place for place, row in enumerate(rows) if row.set == name])
            of_set = [rows[place] for place in places]
            note = progress(f"learning {name}".strip())
            figures.append(evaluate(name, of_set, vectors[places], repeats=asked.repeats, note=note))
    except (OSError, ValueError, ConfigurationError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    sys.stdout.write("\n\n".join(map(_text, figures)) + "\n")
    if asked.json is not None:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    return 0


def _text(figures: RouterFigures) -> str:
    name = figures.set or "all prompts"
    lines = [
        f"{name}: {figures.num_prompts:,} prompts, right: weak {figures.weak:.1%}, strong {figures.strong:.1%}",
        f"  share of the gap recovered, mean over all shares of calls (APGR): {_shown(figures.apgr)}; by chance 0.500",
        f"  calibrated gain is off by {100 * figures.calibration_error:.1f} points of right answers",
        "  calls to the strong model   share of the gap recovered",
    ]
    lines += [f"  {share:>24.0%}   {_shown(each)}" for share, each in zip(SHARES, figures.recovered, strict=True)]
    return "\n".join(lines)


def _shown(estimate: Interval) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m policies.speculation.router", description=__doc__)
    parser.add_argument("labelled", type=Path, metavar="FILE", help="prompts with what each model made of them")
    parser.add_argument("--repeats", type=int, default=3, help="divisions into five folds")
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="keep the prompts' vectors there")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
