"""Runs a module as a command of its own: what it loads and measures shares neither threads nor modules with ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import click


def check_can_be_written(path: Path | None, option: str) -> None:
    """Raises: BadParameter for a file in a folder that is not there, before minutes are spent on what goes into it."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no such folder as {path.parent}", param_hint=option)


def check_installed(needs: Sequence[str], extra: str) -> None:
    """Raises: ClickException that names the modules that are missing, and the extra that brings them."""
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{', '.join(missing)} not installed; pip install 'slipstream-gateway[{extra}]'")


def run_module(module: str, arguments: Sequence[str], *, text: bytes | None = None) -> NoReturn:
    """Ends with the module's exit code. `text` is what it reads from standard input, by default ours."""
    command = [sys.executable, "-m", module, *arguments]
    sys.exit(subprocess.run(command, input=text, check=False).returncode)
