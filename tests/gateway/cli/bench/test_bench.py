"""`slipstream bench`: what it can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.engine.benchmark.__main__ import MEASUREMENTS as KNOWN
from gateway.cli.bench.bench import MEASUREMENTS
from tests.support.cli import Run


def test_bench_engine_knows_every_measurement() -> None:
    """What the command offers is what the benchmark can measure."""
    assert tuple(KNOWN) == MEASUREMENTS


def test_bench_engine_unknown_measurement_names_the_known_ones(run: Run) -> None:
    """A typing error costs no eight minutes."""
    result = run("bench", "engine", "--only", "fp32")

    assert result.exit_code == 2
    assert "overhead" in result.output


def test_bench_engine_unwritable_json_fails_at_once(run: Run, tmp_path: Path) -> None:
    """A file that cannot be written is told before anything is measured."""
    result = run("bench", "engine", "--json", str(tmp_path / "no" / "such" / "folder" / "figures.json"))

    assert result.exit_code == 2
    assert "no such folder" in result.output.lower()


def test_bench_kernels_unknown_operation_names_the_known_ones(run: Run) -> None:
    """A typing error costs no ten minutes."""
    result = run("bench", "kernels", "--only", "flash")

    assert result.exit_code == 2
    assert "flash is not one of" in result.output
    assert "paged_decode" in result.output


def test_bench_kernels_unwritable_json_fails_at_once(run: Run, tmp_path: Path) -> None:
    """A file that cannot be written is told before anything is measured."""
    result = run("bench", "kernels", "--json", str(tmp_path / "no" / "such" / "folder" / "figures.json"))

    assert result.exit_code == 2
    assert "no such folder" in result.output.lower()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_bench_kernels_without_a_gpu_exits_with_two(run: Run) -> None:
    """The exit code of the benchmark's own process is the command's."""
    assert run("bench", "kernels", "--only", "norm").exit_code == 2
