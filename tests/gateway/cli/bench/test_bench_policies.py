"""`slipstream bench policies`: what it can be asked for, and what it prints."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from gateway.cli.bench.policies import MEASURED, SIMULATED
from gateway.simulate.figures import FIGURES, MOONCAKE
from tests.support.cli import Run


def test_bench_policies_knows_every_figure() -> None:
    """What the command offers is what is there."""
    assert tuple(FIGURES) == SIMULATED
    assert all(Path(f"{module.replace('.', '/')}.py").is_file() for module in MEASURED.values())


def test_bench_policies_table_and_json_have_the_same_figures(run: Run, tmp_path: Path) -> None:
    """A line for each; a load that two slow replicas carry is met."""
    lines = [f'{{"t": {0.1 * n}, "i": 1000, "o": 50}}\n' for n in range(60)]
    (tmp_path / f"{MOONCAKE}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    file = tmp_path / "figures.json"

    result = run("bench", "policies", "--data", tmp_path, "--only", "stragglers", "--json", file)

    [figure] = json.loads(file.read_text())
    assert (figure["is_met"], result.exit_code) == (True, 0), result.output
    assert f"| {figure['figure']} | >= 99.5% | {figure['measured']} | yes |" in result.stdout


def test_bench_policies_missing_trace_exits_with_one(run: Run, tmp_path: Path) -> None:
    """The name of the file, and nothing measured."""
    result = run("bench", "policies", "--data", tmp_path, "--only", "hog")

    assert result.exit_code == 1
    assert "arena_clients.jsonl.gz: this trace is not there" in result.output


def test_bench_policies_unknown_figure_names_the_known_ones(run: Run, tmp_path: Path) -> None:
    """A typing error costs no minutes."""
    result = run("bench", "policies", "--data", tmp_path, "--only", "fairness")

    assert result.exit_code == 2
    assert "stragglers" in result.output
