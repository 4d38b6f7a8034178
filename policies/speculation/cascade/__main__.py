"""`python -m policies.speculation.cascade`: from labelled answers to the thresholds of a cascade, in a file."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from backends.errors import ConfigurationError
from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import fingerprint_of
from policies.speculation.cascade.calibration import Accept, Calibration, calibrate, write_calibration
from policies.speculation.router.evaluation import out_of_fold
from policies.speculation.router.labelled import BadLabels, LabelledPrompt, read_labelled
from policies.speculation.router.learned_router import learn
from policies.speculation.router.progress import progress
from policies.speculation.router.prompt_vectors import encode_prompts

_QUALITIES = (0.8, 0.85, 0.9, 0.95, 0.97, 0.99)


def main(arguments: list[str]) -> int:
    """Calibrates. 0 where a threshold keeps the asked quality, 1 where none does, 2 where it cannot be done."""
    asked = _parser().parse_args(arguments)
    try:
        rows = read_labelled(asked.on)
        with tempfile.TemporaryDirectory(prefix="slipstream-calibrate-") as folder:
            calibration = _calibrated(asked.accept, rows, asked.vectors or Path(folder))
        write_calibration(asked.out, calibration)
    except (OSError, ValueError, ConfigurationError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    sys.stdout.write(_text(calibration, sorted({*_QUALITIES, asked.quality})) + f"\n\nwritten to {asked.out}\n")
    if calibration.threshold(asked.quality) is None:
        sys.stdout.write(f"no threshold keeps quality {asked.quality:g}: a policy that asks for it is refused\n")
        return 1
    return 0


def _calibrated(accept: Accept, rows: list[LabelledPrompt], vectors_folder: Path) -> Calibration:
    weak = np.array([row.weak for row in rows])
    strong = np.array([row.strong for row in rows])
    random = np.random.default_rng(0)
    if accept != "router":
        return calibrate(accept, _scores(rows), weak, strong, random)
    prompts = [row.prompt for row in rows]
    vectors = encode_prompts(prompts, vectors_folder, progress("encoding"))
    scores, _ = out_of_fold(rows, vectors, random)
    learned = learn(prompts, vectors, (strong - weak).astype(np.float32), random)
    encoder = fingerprint_of(find_folder(None), vectors.shape[1])
    return calibrate(accept, -scores, weak, strong, random, router=learned, encoder=encoder)


def _scores(rows: list[LabelledPrompt]) -> NDArray[np.float64]:
    scores = [row.score for row in rows if row.score is not None]
    if len(scores) < len(rows):
        raise BadLabels(
            f'{len(rows) - len(scores)} of {len(rows)} lines have no "score": the mean log-probability of the small '
            "model's answer, or the verifier's word on it (1 or 0)"
        )
    return np.array(scores)


def _text(calibration: Calibration, qualities: list[float]) -> str:
    lines = [
        f"{calibration.num_answers:,} labelled prompts, right: draft {calibration.weak:.1%}, target "
        f"{calibration.strong:.1%}; accepted by {calibration.accept}",
        "",
        "quality   answered by the draft   quality on held-out answers   from score",
    ]
    for quality in qualities:
        found = calibration.threshold(quality)
        if found is None:
            lines.append(f"{quality:>7.3g}   {'-':>21}   no threshold keeps it")
            continue
        held = found.held_out
        shown = f"{held.value:.3f} [{held.low:.3f}, {held.high:.3f}]"
        lines.append(f"{quality:>7.3g}   {found.share:>21.1%}   {shown:>27}   {found.score:>10.4g}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m policies.speculation.cascade", description=__doc__)
    parser.add_argument(
        "--on", type=Path, required=True, metavar="FILE", help="prompts with what each model made of them"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the calibration goes")
    parser.add_argument("--accept", choices=get_args(Accept), default="router", help="what decides at serving")
    parser.add_argument("--quality", type=float, default=0.95, help="right answers, as a share of the target's")
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="keep the prompts' vectors there")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
