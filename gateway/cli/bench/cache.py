"""`slipstream bench cache`: how often the semantic cache serves, and how often wrongly, on labelled questions."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.module import check_can_be_written, check_installed, run_module

SETS = ("banking77", "clinc150", "templates", "qqp", "sick")
"""The names that `--sets` accepts."""

_NEEDS = ("numpy", "sentence_transformers")


def _known_sets(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, ...]:
    names = tuple(filter(None, (given or "").split(",")))
    for name in names:
        if name not in SETS:
            raise click.BadParameter(f"{name} is not one of {', '.join(SETS)}")
    return names


@click.command()
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder with <set>_*.jsonl.gz: lines of text and cluster, or of a, b and y.",
)
@click.option("--sets", callback=_known_sets, metavar="A,B", help=f"Of {', '.join(SETS)}.  [default: the first four]")
@click.option("--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Streams of each set.")
@click.option(
    "--max-wrong-hit-rate",
    type=click.FloatRange(0.0001, 0.2),
    default=0.01,
    show_default=True,
    help="The bound that is to be kept, of look-ups.",
)
@click.option(
    "--vectors",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the texts' vectors in this folder: computing them takes a minute and more for each set.",
)
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there as well."
)
def cache(
    data: Path, sets: tuple[str, ...], seeds: int, max_wrong_hit_rate: float, vectors: Path | None, file: Path | None
) -> None:
    """Replay labelled questions through the semantic cache: hits and wrong answers, beside other policies.

    Every question is looked up once, in an order that the seed decides; what is not served is asked of a backend that
    knows the right answer. The same streams go through an exact cache, GPTCache's default (cosine 0.6), RedisVL's
    (cosine 0.9) and a policy like vCache's; ours also with a comparator that errs. Exit code 1 where a figure misses
    what is asked for, 2 where it cannot be measured.

    \b
    $ slipstream bench cache --data semcache --sets banking77,clinc150 --json figures.json
    """
    check_can_be_written(file, "--json")
    check_installed(_NEEDS, "semantic")
    arguments = ["--data", str(data), "--seeds", str(seeds), "--max-wrong-hit-rate", str(max_wrong_hit_rate)]
    for name in sets:
        arguments += ["--set", name]
    if vectors is not None:
        arguments += ["--vectors", str(vectors)]
    if file is not None:
        arguments += ["--json", str(file)]
    run_module("policies.cache.semantic.benchmark", arguments)
