"""`slipstream bench`: measures on this machine, beside other programs and the figures that the project requires."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import click

from gateway.cli.bench.cache import cache
from gateway.cli.bench.policies import policies
from gateway.cli.module import check_can_be_written, check_installed, run_module

MEASUREMENTS = ("bf16", "int8", "overhead", "speculation", "prefix", "ready")
"""The names that `bench engine --only` accepts."""

_ENGINE_NEEDS = ("torch", "numpy", "safetensors", "tokenizers")
_KERNELS_NEED = ("torch", "numpy")


def _known_kernels(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that each name is that of a kernel."""
    if names and find_spec("torch") is not None:
        from kernels.dispatch import op_names

        known = op_names()
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name} is not one of {', '.join(known)}")
    return names


@click.group()
def bench() -> None:
    """Measure on this machine what Slipstream promises, beside those that it is compared with.

    \b
    $ slipstream bench engine --only speculation
    $ slipstream bench kernels
    $ slipstream bench cache --data semcache
    $ slipstream bench policies --data traces
    """


bench.add_command(cache)
bench.add_command(policies)


@bench.command()
@click.option("--only", multiple=True, type=click.Choice(MEASUREMENTS), help="Measure this alone; may be repeated.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there as well."
)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, help="For everyone measured.")
def engine(only: tuple[str, ...], file: Path | None, threads: int) -> None:
    """Measure the engine on this CPU: a table of what is asked for and what was measured, in up to eight minutes.

    Peers that are not installed are left out with a line that says how to get them. Exit code 1 where a figure that
    could be measured misses what is asked for.

    \b
    $ slipstream bench engine --only bf16 --only int8 --json figures.json
    """
    _run("backends.engine.benchmark", _ENGINE_NEEDS, only, file, "--threads", str(threads))


@bench.command()
@click.option("--only", metavar="OP", multiple=True, callback=_known_kernels, help="This alone; may be repeated.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there as well."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    help="After which nothing more is begun, some minutes where it is not said; what is asked for comes first.",
)
def kernels(only: tuple[str, ...], file: Path | None, seconds: float | None) -> None:
    """Check and time the kernels on this machine's GPU, beside its own limits and other kernels, in up to ten minutes.

    First every result is compared with float64. Then each kernel's time at real models' sizes is printed: microseconds,
    GB/s and TFLOP/s, its share of what a copy of memory reaches, and what cuBLAS, SDPA or PyTorch's compiler take for
    the same work. Exit code 1 where a result is wrong or a figure misses what is asked for, 2 where there is no GPU.

    \b
    $ slipstream bench kernels --only paged_decode --only w4a16 --json figures.json
    """
    limit = () if seconds is None else ("--seconds", str(seconds))
    _run("kernels.benchmark", _KERNELS_NEED, only, file, *limit)


def _run(module: str, needs: Sequence[str], only: Sequence[str], file: Path | None, *more: str) -> NoReturn:
    """Run a benchmark's module and exit with its code."""
    check_can_be_written(file, "--json")
    check_installed(needs, "engine")
    arguments = [*more]
    for name in only:
        arguments += ["--only", name]
    if file is not None:
        arguments += ["--json", str(file)]
    run_module(module, arguments)
