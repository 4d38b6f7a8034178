"""`slipstream calibrate`: what a cascade goes by, from answers of which it is known whether they were right."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.module import check_can_be_written, check_installed, run_module
from gateway.cli.two_models.eval_router import NEEDS


@click.command()
@click.option(
    "--on",
    "labelled",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Labelled prompts, as for `slipstream eval-router`.",
)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Where the calibration is written."
)
@click.option(
    "--accept",
    type=click.Choice(["router", "logprob", "verifier"]),
    default="router",
    show_default=True,
    help="What decides, as in the policy.",
)
@click.option(
    "--quality",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Right answers that have to be left, as a share of the target's.",
)
@click.option(
    "--vectors", type=click.Path(path_type=Path, file_okay=False), help="Keep the prompts' vectors in this folder."
)
def calibrate(labelled: Path, out: Path, accept: str, quality: float, vectors: Path | None) -> None:
    """Write the calibration that a cascade needs, and print what each quality costs, as held-out answers say.

    With --accept router a line of FILE is {"prompt": ..., "weak": ..., "strong": ...}, how right both models were. With
    logprob or verifier it has a "score" too: the mean log-probability of the small model's answer, or 1 or 0 as the
    verifier said. The exit code is 1 where no threshold keeps the quality.

    \b
    Example:
      slipstream calibrate --on labelled.jsonl --out pair.cascade --quality 0.97
    """
    check_can_be_written(out, "--out")
    check_installed(NEEDS if accept == "router" else ("numpy",), "semantic")
    arguments = ["--on", str(labelled), "--out", str(out), "--accept", accept, "--quality", str(quality)]
    arguments += ["--vectors", str(vectors)] if vectors is not None else []
    run_module("policies.speculation.cascade", arguments)
