"""`slipstream bench policies`: the required figures of balancing, admission and fairness beside the measured ones."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backends.errors import ConfigurationError
from gateway.cli.loading import FileProblem
from gateway.cli.models.model_folder import progress_bar
from gateway.cli.module import check_can_be_written

if TYPE_CHECKING:
    from gateway.simulate.figures import PolicyFigure

SIMULATED = ("in_slo", "goodput", "hog", "stragglers", "speed")
MEASURED = {
    "decision": "tests.benchmarks.policies.routing_cost",
    "request": "tests.benchmarks.gateway.request_cost",
    "live": "tests.benchmarks.policies.live_overload",
    "embeddings": "tests.benchmarks.policies.batching_window",
    "memory": "tests.benchmarks.policies.admission_memory",
}
"""The figures that are measured by benchmarks of the source tree, with their modules."""


@click.command()
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder with the traces, NAME.jsonl.gz each.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    type=click.Choice([*SIMULATED, *MEASURED]),
    help=f"This alone; may be repeated: {', '.join([*SIMULATED, *MEASURED])}.",
)
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there as well."
)
def policies(data: Path, only: tuple[str, ...], file: Path | None) -> None:
    """Replay real traces through the policies, beside others' ways, and print a table of figures, in some minutes.

    Loads at and above what a fleet can do, a greedy client, slow replicas; in a checkout of the source also what a
    decision and a request cost, a live overload, batched embeddings and memory. Exit code 1 where a figure misses what
    is asked for; of times, which depend on the machine, nothing is asked.

    \b
    $ slipstream bench policies --data traces --only goodput --json figures.json
    """
    import msgspec

    from gateway.simulate.figures import FIGURES, Runs

    check_can_be_written(file, "--json")
    runs = Runs(data, progress_bar)
    figures: list[PolicyFigure] = []
    try:
        for name in only or (*SIMULATED, *MEASURED):
            figures += FIGURES[name](runs) if name in FIGURES else _measured(name)
    except ConfigurationError as error:
        raise FileProblem(error.message) from error
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    click.echo(_table(figures))
    sys.exit(int(any(figure.is_met is False for figure in figures)))


def _measured(name: str) -> list[PolicyFigure]:
    """Run a benchmark in a process of its own, and read its figures."""
    import msgspec

    from gateway.simulate.figures import PolicyFigure

    module = MEASURED[name]
    if find_spec("tests") is None or find_spec(module) is None:
        return [PolicyFigure(name, "-", "-", None, f"measured in a checkout of the source: python -m {module}")]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        subprocess.run([sys.executable, "-m", module, "--json", str(file)], check=False, stdout=sys.stderr)
        if not file.is_file():
            raise click.ClickException(f"python -m {module} has measured nothing; its messages are above")
        return msgspec.json.decode(file.read_bytes(), type=list[PolicyFigure])


def _table(figures: list[PolicyFigure]) -> str:
    """The figures as a Markdown table."""
    marks = {True: "yes", False: "no", None: "-"}
    rows = [(each.figure, each.must, each.measured, marks[each.is_met], each.note) for each in figures]
    head = ("figure", "asked for", "measured", "met", "note")
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
