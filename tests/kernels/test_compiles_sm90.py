"""The kernels through the compiler for sm_90, and some for smaller GPUs, in a process of their own: see `apart/`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernels.apart import needs_triton, run_apart


@needs_triton
def test_kernels_compile_for_sm90_within_their_limits(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Every kernel at real shapes: nothing spilled, room for neighbours, the claimed instructions.

    For GPUs of less shared memory they fit with fewer stages, or their twins are named.

    What was compiled is kept between runs, where pytest keeps anything: its key is the source with all that it calls.
    """
    # Without pytest's plugin for it there is none.
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    folder = tmp_path if cache is None else cache.mkdir("triton-sm90")
    run_apart("check_sm90.py", "check_other_gpus.py", interpret=False, cache=folder)
