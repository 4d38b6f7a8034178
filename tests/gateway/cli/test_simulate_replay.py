"""`slipstream simulate` with an access log: replayed, and as what backends are fitted to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backends.simulation.simulated import SimulatedConfig
from tests.support.cli import Run
from tests.support.policy.replay_log import policy as write_policy
from tests.support.policy.replay_log import write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An access log of two backends, one of them slower."""
    return write_log(tmp_path_factory.mktemp("log"))


def test_simulate_replay_shows_both_in_every_form(run: Run, log: Path, tmp_path: Path) -> None:
    """As a table, as JSON with what was fitted, and in the page."""
    write_policy(tmp_path)
    page = tmp_path / "page.html"
    arguments = ("simulate", "--trace", log, "--policy", tmp_path / "policy.yaml", "--replay", "--html", page)

    text, data = run(*arguments).stdout, msgspec.json.decode(run(*arguments, "--json").stdout)

    assert [row["backend"] for row in data["replay"]] == ["all", "fast", "slow"]
    assert data["fitted"]["slow"]["token_us"] > SimulatedConfig().token_us
    ratio = data["replay"][0]["ttft_p50_ratio"]
    rows = [line.split() for line in text.splitlines()]
    [row] = [row for row in rows if row[:1] == ["all"]]
    assert f"{ratio:.2f}" in row
    assert f"<td>{ratio:.2f}</td>" in page.read_text(encoding="utf-8").split("Replayed beside logged")[1]


def test_simulate_fit_from_a_log_replays_any_trace_on_its_fleet(run: Run, log: Path, tmp_path: Path) -> None:
    """Another rate than the log's, with the log's backends: load and capacity are known."""
    write_policy(tmp_path)
    arguments = ("simulate", "--trace", log, "--policy", tmp_path / "policy.yaml", "--fit-from", log, "--json")

    calm, busy = (msgspec.json.decode(run(*arguments, "--load", load).stdout) for load in ("0.3", "0.9"))

    assert calm["capacity_rps"] == busy["capacity_rps"]
    assert calm["offered_rps"] == pytest.approx(0.3 * calm["capacity_rps"])
    assert calm["ttft_p50_s"] < busy["ttft_p50_s"]
    assert "replay" not in calm


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--replay", "--fleet", "2"), 2, "give one of --fleet, --fit-from and --replay"),
        (("--replay", "--load", "1"), 2, "--replay keeps the log's own pace"),
        (("--replay",), 1, "only an access log with answers of backends can be replayed or fitted"),
    ],
)
def test_simulate_replay_wrong_usage_is_said(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """With its exit code, without a traceback."""
    write_policy(tmp_path)
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"t":0,"i":5,"o":5}\n', encoding="utf-8")

    result = run("simulate", "--trace", trace, "--policy", tmp_path / "policy.yaml", *arguments)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in " ".join(result.stderr.split())
