"""Runs checks in a pytest process of their own: Triton's interpreter and its compiler cannot share one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
TIMEOUT_S = 1200

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed; it is made for Linux")


def run_apart(*checks: str, interpret: bool, cache: Path) -> None:
    """Runs these files of tests/kernels/apart, compiled kernels under `cache`; fails with what they say if they do."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {
        "TRITON_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1" if interpret else "0",
    }
    # The interpreter computes with NaN as a GPU does, which numpy finds worth a warning.
    files = [f"tests/kernels/apart/{name}" for name in checks]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*command, *files, "-W", "ignore::RuntimeWarning"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    assert " passed" in done.stdout
