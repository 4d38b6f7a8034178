"""A disk of the test's own, to be filled or made read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size_mib: int = 24) -> Iterator[None]:
    """A file system of that size there; without the right to make one the test is skipped."""
    options = f"size={size_mib}m"
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("a file system of the test's own needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Nothing on the disk that is mounted there can be changed any more."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all that is left of the file system."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
