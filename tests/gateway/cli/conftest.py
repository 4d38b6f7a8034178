"""Runs the command line in this process, with an environment of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from tests.support.cli import ENVIRON, POLICY, Run


@pytest.fixture
def run() -> Run:
    """Call `slipstream` with these arguments; `environ` replaces the usual secrets."""

    def call(*arguments: object, environ: dict[str, str | None] | None = None, stdin: str = "") -> Result:
        variables: dict[str, str | None] = dict(ENVIRON) if environ is None else environ
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], env=variables, input=stdin)

    return call


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy file that is right."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, encoding="utf-8")
    return path


@pytest.fixture
def bad_policy(tmp_path: Path) -> Path:
    """A policy file with two mistakes."""
    path = tmp_path / "bad.yaml"
    path.write_text(POLICY.replace("ttl: 90s", "ttl: 90").replace("ref: last}]", "ref: lost}]"), encoding="utf-8")
    return path
