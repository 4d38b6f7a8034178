"""Runs a module in a process of its own, so that its measurements share neither threads nor modules with ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import click


def check_can_be_written(path: Path | None, option: str) -> None:
    """Check that the file's folder exists, before minutes are spent on its content. Raises: BadParameter."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no such folder as {path.parent}", param_hint=option)


def check_installed(needs: Sequence[str], extra: str) -> None:
    """Check that modules are installed. Raises: ClickException that names the missing ones and their extra."""
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{', '.join(missing)} not installed; pip install 'slipstream-gateway[{extra}]'")


def run_module(module: str, arguments: Sequence[str], *, text: bytes | None = None) -> NoReturn:
    """Run a module and exit with its code. `text` is its standard input, by default that of this process."""
    command = [sys.executable, "-m", module, *arguments]
    sys.exit(subprocess.run(command, input=text, check=False).returncode)
