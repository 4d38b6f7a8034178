"""The kernels through the compiler for sm_90, in a process of their own: see `apart/check_sm90.py`."""

from __future__ import annotations

from pathlib import Path

from tests.support.apart import needs_triton, run_apart


@needs_triton
def test_kernels_compile_for_sm90_within_their_limits(tmp_path: Path) -> None:
    """Every kernel at real shapes: nothing spilled, room for neighbours, the claimed instructions."""
    run_apart("check_sm90.py", interpret=False, cache=tmp_path)
