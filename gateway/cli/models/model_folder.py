"""What the commands about models share: finding a model's folder, reporting its problems, progress, tables, units."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

METHODS = ("int8", "w8a8", "fp8", "int4", "nf4")
"""The methods of quantization."""

json_option = click.option("--json", "as_json", is_flag=True, help="For programs: exact numbers, as JSON.")

_EMBEDDED = {"slipstream-target": "target", "slipstream-draft": "draft"}
_NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "jinja2")


def model_folder(given: str) -> Path | None:
    """The folder of a model, given by its path or as the name of a model of the package; None if there is none."""
    if given in _EMBEDDED:
        return Path(str(resources.files("backends.engine.demo_models"))) / _EMBEDDED[given]
    folder = Path(given).expanduser()
    return folder if folder.is_dir() else None


def existing_folder(context: click.Context, parameter: click.Parameter, given: str | None) -> Path | None:
    """`model_folder` as the callback of an argument. Raises: BadParameter."""
    del context, parameter
    folder = None if given is None else model_folder(given)
    if given is not None and folder is None:
        raise click.BadParameter(f'there is no folder "{given}"')
    return folder


def file_text(path: Path) -> str:
    """Read a text file of the user's. Raises: ClickException."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8: {error}") from error


@contextmanager
def engine_at_work() -> Iterator[None]:
    """Check that the engine is installed, and turn the errors that it raises into messages of the command."""
    missing = [module for module in _NEEDED if find_spec(module) is None]
    if missing:
        problem = f"{', '.join(missing)} is not installed: pip install 'slipstream-gateway[engine]'"
        raise click.ClickException(f"this needs the extra `engine`; {problem}")
    from safetensors import SafetensorError

    from backends.engine.errors import EngineError

    try:
        yield
    except (EngineError, OSError, SafetensorError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with (done, total), which draws a progress bar on standard error if that is a terminal."""
    with ExitStack() as stack:
        bars: list[Any] = []

        def advance(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(click.progressbar(length=total, label=label, file=sys.stderr)))
            bars[0].update(done - bars[0].pos)

        yield advance if sys.stderr.isatty() else lambda done, total: None


def table(rows: Sequence[Sequence[str]]) -> str:
    """A text table whose first row is the header; numbers are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("   ".join([f"{first:<{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)


def size_text(num_bytes: float) -> str:
    """Bytes in a suitable unit, as in 15.0 GiB."""
    unit = next((unit for unit in ("TiB", "GiB", "MiB") if num_bytes >= _UNITS[unit]), "KiB")
    return f"{num_bytes / _UNITS[unit]:,.1f} {unit}"


_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
