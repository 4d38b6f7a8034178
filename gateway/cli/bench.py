"""`slipstream bench`: figures of this machine, each beside those that it is compared with."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

MEASUREMENTS = ("bf16", "int8", "overhead", "speculation", "prefix", "ready")
"""What `--only` of `bench engine` can name."""

_ENGINE_NEEDS = ("torch", "numpy", "safetensors", "tokenizers")


@click.group()
def bench() -> None:
    """Measure on this machine what Slipstream promises, beside those that it is compared with.

    \b
    $ slipstream bench engine --only speculation
    """


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
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"there is no such folder as {file.parent}", param_hint="--json")
    missing = [module for module in _ENGINE_NEEDS if find_spec(module) is None]
    if missing:
        raise click.ClickException(f"{', '.join(missing)} not installed; pip install 'slipstream-gateway[engine]'")
    command = [sys.executable, "-m", "backends.engine.benchmark", "--threads", str(threads)]
    for name in only:
        command += ["--only", name]
    if file is not None:
        command += ["--json", str(file)]
    # A process of its own: what is measured then shares neither threads nor modules with the gateway's command.
    sys.exit(subprocess.run(command, check=False).returncode)
