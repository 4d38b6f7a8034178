"""Planted mistakes in the kernels, in a process of their own: see `apart/check_mutations.py`."""

from __future__ import annotations

from pathlib import Path

from tests.support.kernels.apart import needs_triton, run_apart


@needs_triton
def test_mutations_of_the_kernels_are_seen(tmp_path: Path) -> None:
    """Each planted mistake makes the check against float64 fail."""
    run_apart("check_mutations.py", interpret=True, cache=tmp_path)
