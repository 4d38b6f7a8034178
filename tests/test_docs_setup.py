"""What the README's two commands rely on: pins for everything, a Makefile that runs, CI that runs the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.docs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.split("==") for line in LINES if not line.startswith("#"))
REQUIRED = [
    Requirement(text)
    for text in (
        *PROJECT["dependencies"],
        *(text for extra in PROJECT["optional-dependencies"].values() for text in extra),
    )
    if not text.startswith(PROJECT["name"])
]


@pytest.mark.parametrize("requirement", REQUIRED, ids=lambda requirement: requirement.name)
def test_constraints_pin_every_requirement_within_its_bounds(requirement: Requirement) -> None:
    """Whatever the project and its extras ask for has one exact version, and it is one that they allow."""
    pinned = {canonicalize_name(name): version for name, version in PINS.items()}

    assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def test_constraints_name_versions_and_nothing_else() -> None:
    """Pins name no host, no path and no local build, and the file begins with the command that makes it."""
    assert all(
        re.fullmatch(r"[\w.-]+", name) and re.fullmatch(r"(\d+!)?[\w.]+", version) for name, version in PINS.items()
    )
    assert LINES[0].startswith("# python3 -m venv ")
    assert LINES[0].endswith("> constraints.txt")


def test_constraints_bring_no_cuda() -> None:
    """Nothing that needs a GPU is pinned."""
    assert [name for name in PINS if name.startswith(("nvidia", "cuda", "triton"))] == []


def test_light_install_asks_for_no_model_library() -> None:
    """What every install brings is small; torch and the like come with an extra only."""
    assert {Requirement(text).name for text in PROJECT["dependencies"]}.isdisjoint(
        {"torch", "numpy", "faiss-cpu", "sentence-transformers", "redis", "jinja2"}
    )


def test_makefile_says_what_can_be_made() -> None:
    """`make` alone lists the targets, the two commands of the README among them."""
    listed = subprocess.run(["make", "-C", ROOT, "-s"], capture_output=True, text=True, timeout=30, check=True).stdout

    assert {"serve", "test"} <= {line.split()[0] for line in listed.splitlines() if line.strip()}


def test_makefile_names_a_python_that_is_too_old(tmp_path: Path) -> None:
    """Nothing is installed with it; the message says what is needed and how to name another."""
    made = make_serve_with(tmp_path, f"""exec {sys.executable} -c "import sys; sys.version_info = (3, 10); $2" """)

    assert made.returncode != 0
    assert "Python 3.11 or newer is needed, as in: make PYTHON=python3.12 serve" in made.stderr


def test_makefile_leaves_no_half_made_environment(tmp_path: Path) -> None:
    """Where `python3 -m venv` fails midway, as without Debian's python3-venv, the next call starts from nothing."""
    made = make_serve_with(tmp_path, """[ "$1" = -c ] || { mkdir -p "$3/bin"; touch "$3/bin/python"; exit 1; }""")

    assert made.returncode != 0
    assert not (tmp_path / "venv").exists()


def test_ci_runs_the_readmes_test_command() -> None:
    """CI runs `make test` and nothing else."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert [line for line in script.splitlines() if not line.startswith(("#", "set ", "cd "))] == ["exec make test"]


def make_serve_with(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """`make serve` with a shell script in Python's place, and its environment in `folder`."""
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    command = ["make", "-C", ROOT, "serve", f"PYTHON={python}", f"VENV={folder / 'venv'}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)
