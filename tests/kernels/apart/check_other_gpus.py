"""A kernel that takes much shared memory, and some of float8, through the compiler for GPUs that have less.

Run by `test_compiles_sm90.py`. All kernels, on all GPUs, take minutes: `python -m tests.benchmarks.engine.kernel_fit`.
"""

from __future__ import annotations

import pytest
import torch

from kernels.dispatch import load_ops
from tests.support.kernels.other_gpus import distinct, fit, launches_of

OPS = {op.name: op for op in load_ops()}


def test_kernel_fits_a_gpu_of_little_shared_memory_with_fewer_stages() -> None:
    """104 KiB on an H200, of which sm_86, sm_89 and sm_120 have 99."""
    launches = distinct(launches_of(OPS["paged_prefill"], torch.device("meta")))
    launch = launches["paged_prefill-gemma-8192-paged_prefill_kernel"]

    found = fit(launch, 89)

    assert (launch.config.num_stages, found.num_stages) == (2, 1)
    assert found.reason == "106496 bytes of shared memory"


@pytest.mark.parametrize("name", ["paged_decode", "quantize_rows", "w8"])
def test_kernel_of_float8_is_left_to_its_twin_on_a_gpu_without(name: str) -> None:
    """The compiler says so by an error that is known."""
    launches = distinct(launches_of(OPS[name], torch.device("meta")))
    name, launch = next((name, launch) for name, launch in launches.items() if "-fp8" in name)

    found = fit(launch, 80)

    assert found.num_stages == 0
    assert "fp8e4nv not supported" in found.reason
