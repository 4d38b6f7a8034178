"""The `slipstream` command as a whole: help, laziness, exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click import Context

from gateway.cli.main import cli
from tests.support.cli import POLICY, Run


def test_help_lists_commands_in_order_of_use_with_examples(run: Run) -> None:
    """Help says in one line what each command is for and shows how to call it."""
    result = run("--help")

    listed = [line.split()[0] for line in result.output.partition("of use:\n")[2].splitlines() if line[2:3].isalpha()]
    assert result.exit_code == 0
    names = cli.list_commands(Context(cli))
    assert listed[: len(names)] == names
    assert names[:5] == ["init", "check", "explain", "config", "serve"]
    assert result.output.count("$ slipstream") == len(names)


def test_help_imports_no_command() -> None:
    """Help stays quick: neither pydantic nor any part of the gateway is imported for it."""
    code = (
        "import sys; from gateway.cli.main import cli; cli(['--help'], standalone_mode=False);"
        "assert 'pydantic' not in sys.modules and 'policies' not in sys.modules, 'too much is imported'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert result.returncode == 0, result.stderr


def test_every_command_has_help(run: Run) -> None:
    """Each listed command can be imported and explains itself."""
    for name in cli.list_commands(Context(cli)):
        result = run(name, "--help")

        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: cli {name}")


def test_unknown_command_is_wrong_usage(run: Run) -> None:
    """A command that does not exist ends with 2."""
    result = run("chekc")

    assert result.exit_code == 2
    assert "No such command 'chekc'" in result.stderr


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version_is_that_of_the_package(run: Run, asked: str) -> None:
    """The version printed is the installed one, as a command and as an option."""
    result = run(asked)

    assert result.exit_code == 0
    assert result.output == f"slipstream {version('slipstream-gateway')}\n"


def test_installed_script_checks_a_file(tmp_path: Path) -> None:
    """The script that installation makes runs, in an environment of its own."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, encoding="utf-8")
    script = Path(sys.executable).with_name("slipstream")

    result = subprocess.run(
        [script, "check", "--no-env", path], capture_output=True, text=True, timeout=30, env={"PATH": "/usr/bin:/bin"}
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{path}: OK, revision ")
