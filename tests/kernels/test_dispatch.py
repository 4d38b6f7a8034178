"""Which implementation an engine is handed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kernels.attention.paged_attention import paged_attention_reference
from kernels.dispatch import select_ops
from tests.support.kernels.apart import needs_triton


@pytest.mark.parametrize(("device_type", "reference"), [("cpu", False), ("cpu", True), ("cuda", True)])
def test_select_ops_twins_where_there_is_no_gpu_or_they_are_asked_for(device_type: str, reference: bool) -> None:
    """Every operation is a torch twin."""
    ops = select_ops(device_type, reference=reference)

    assert all(getattr(ops, field.name).__name__.endswith("_reference") for field in fields(ops))
    assert ops.paged_attention is paged_attention_reference


@needs_triton
def test_select_ops_cuda_takes_the_kernels() -> None:
    """Every operation launches kernels."""
    ops = select_ops("cuda")

    launchers = [getattr(ops, field.name) for field in fields(ops)]
    assert [launcher for launcher in launchers if getattr(launcher, "__name__", "").endswith("_reference")] == []
    assert all(launcher.__module__.endswith(("_kernel", ".launch")) for launcher in launchers)
