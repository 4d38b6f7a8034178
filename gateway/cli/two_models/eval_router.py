"""`slipstream eval-router`: what a learned router would make of prompts of which both models' answers are known."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.module import check_can_be_written, check_installed, run_module

NEEDS = ("numpy", "sentence_transformers")


@click.command("eval-router")
@click.argument("labelled", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--repeats", type=click.IntRange(1, 20), default=3, show_default=True, help="Divisions into five folds.")
@click.option(
    "--vectors",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the prompts' vectors in this folder: to compute one takes some 30 ms.",
)
@click.option(
    "--json", "figures", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT", help="Write the figures there."
)
def eval_router(labelled: Path, repeats: int, vectors: Path | None, figures: Path | None) -> None:
    """Learn a router on FILE, and print what share of the gap between two models it recovers for how many calls.

    FILE has a line for each prompt: {"prompt": a text, "weak": how right the small model was, 0 to 1, "strong": how
    right the large one was}; gzip or plain. What stands before a slash in "id" names a set; each set is learned and
    shown by itself. Every prompt is judged by a router that was learned without it (five folds).

    \b
    Example:
      slipstream eval-router labelled.jsonl --vectors vectors
    """
    check_can_be_written(figures, "--json")
    check_installed(NEEDS, "semantic")
    arguments = [str(labelled), "--repeats", str(repeats)]
    arguments += ["--vectors", str(vectors)] if vectors is not None else []
    arguments += ["--json", str(figures)] if figures is not None else []
    run_module("policies.speculation.router", arguments)
