"""The kernels through the compiler for smaller GPUs, in a process of their own: see `apart/check_other_gpus.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernels.apart import needs_triton, run_apart


@needs_triton
def test_kernels_fit_gpus_of_less_shared_memory_or_their_twins_are_named(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """What was compiled is kept between runs, where pytest keeps anything."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    folder = tmp_path if cache is None else cache.mkdir("triton-sm90")
    run_apart("check_other_gpus.py", interpret=False, cache=folder)
