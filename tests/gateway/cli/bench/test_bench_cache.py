"""`slipstream bench cache`: what it can be asked for."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gateway.cli.bench.cache import SETS, cache
from policies.cache.semantic.benchmark.__main__ import SETS as KNOWN


def test_bench_cache_knows_every_set() -> None:
    """What the command offers is what the benchmark can measure."""
    assert SETS == KNOWN


def test_bench_cache_unknown_set_names_the_known_ones(tmp_path: Path) -> None:
    """A typing error costs no five minutes."""
    result = CliRunner().invoke(cache, ["--data", str(tmp_path), "--sets", "banking77,bank"])

    assert result.exit_code == 2
    assert "bank is not one of banking77" in result.output


def test_bench_cache_absurd_bound_fails_at_once(tmp_path: Path) -> None:
    """Nothing is measured with a bound that promises nothing."""
    for bound in ("0", "1", "-0.01", "nan"):
        assert CliRunner().invoke(cache, ["--data", str(tmp_path), "--max-wrong-hit-rate", bound]).exit_code == 2


def test_bench_cache_unwritable_json_fails_at_once(tmp_path: Path) -> None:
    """A file that cannot be written is told before anything is measured."""
    result = CliRunner().invoke(cache, ["--data", str(tmp_path), "--json", str(tmp_path / "no" / "figures.json")])

    assert result.exit_code == 2
    assert "no such folder" in result.output


def test_bench_cache_without_its_sets_exits_with_two(tmp_path: Path) -> None:
    """The exit code of the benchmark's own process is the command's."""
    result = CliRunner().invoke(cache, ["--data", str(tmp_path), "--sets", "qqp"])

    assert result.exit_code == 2
