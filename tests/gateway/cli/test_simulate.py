"""`slipstream simulate`."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.support.cli import Run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty requests of two clients."""
    path = tmp_path / "trace.jsonl"
    rows = [{"t": 0.2 * n, "i": 600 + n, "o": 20, "h": [n % 4], "c": "ab"[n % 2]} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A policy with one upstream."""
    path = tmp_path / "plain.yaml"
    path.write_text(
        "version: 1\nbackends: {gpu: {type: openai, base_url: 'http://127.0.0.1:9/v1', api_key: 'env:NOT_SET'}}\n"
        'routes: [{name: all, match: {models: ["*"]}, backends: [{ref: gpu}]}]\n',
        encoding="utf-8",
    )
    return path


def test_simulate_json_has_the_promised_fields(run: Run, trace: Path, plain: Path) -> None:
    """One simulation is one flat object; secrets are not needed."""
    result = run(
        *("simulate", "--trace", trace, "--policy", plain, "--fleet", "h200-8b:2"),
        *("--load", "0.5", "--seed", "1", "--json", "--balance", "least_tokens", "--price", "3.6"),
    )

    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    promised = ("offered_rps", "goodput_rps", "slo_share", "admitted_slo_share", "prefix_hit", "ttft_p50_s")
    promised += ("ttft_p99_s", "tpot_p99_ms", "shed_share", "jain", "wall_s")
    assert all(isinstance(figures[name], int | float) for name in promised)
    assert (figures["slo_share"], figures["shed_share"], figures["jain"]) == (1, 0, 1)
    assert figures["offered_rps"] == pytest.approx(0.5 * figures["capacity_rps"])
    assert figures["balance"] == "least_tokens"
    assert figures["cost_per_1k"] > 0


def test_simulate_limits_are_the_policys_unless_others_are_given(run: Run, trace: Path, plain: Path) -> None:
    """The first route's `slo` is what counts; `--slo` and `--admission` take the place of what the file says."""
    text = plain.read_text(encoding="utf-8")
    plain.write_text(text.replace("ref: gpu}]", "ref: gpu}], slo: {ttft: 7s}, admission: {}"), encoding="utf-8")
    arguments = ("simulate", "--trace", trace, "--policy", plain, "--fleet", "1", "--json", "--load", "20")

    own, other = (json.loads(run(*arguments, *more).stdout) for more in ((), ("--slo", "ttft=3s")))
    open_, strict = (
        json.loads(run(*arguments, "--slo", "ttft=50ms,ttft_per_1k_prompt=0s", "--admission", each).stdout)
        for each in ("none", "slo")
    )

    assert [each["slo"]["ttft_s"] for each in (own, other)] == [7, 3]
    assert open_["shed_share"] == 0
    assert strict["shed_share"] > 0


def test_simulate_two_policies_stand_side_by_side(run: Run, trace: Path, plain: Path, tmp_path: Path) -> None:
    """A column for each, and the figures of both as JSON."""
    other = tmp_path / "other.yaml"
    other.write_text(plain.read_text(encoding="utf-8").replace("ref: gpu}]", "ref: gpu}], retry: {attempts: 0}"))
    arguments = ("simulate", "--trace", trace, "--policy", plain, "--policy", other, "--fleet", "2")

    text, data = run(*arguments).stdout, json.loads(run(*arguments, "--json").stdout)

    row = next(line for line in text.splitlines() if line.startswith("policy"))
    assert row.split()[1:] == [str(plain), str(other)]
    assert [figures["policy"] for figures in data["runs"]] == [str(plain), str(other)]


def test_simulate_range_is_a_curve_with_a_page(run: Run, trace: Path, plain: Path, tmp_path: Path) -> None:
    """A line for each size, the smallest that is enough, and plots that are well-formed and stay within their frame."""
    page = tmp_path / "page.html"

    result = run(
        *("simulate", "--trace", trace, "--policy", plain, "--fleet", "1..3", "--rate", "40", "--html", page),
    )

    assert result.exit_code == 0, result.output
    assert f"{plain}: smallest fleet for 90% in SLO: " in result.stdout
    text = page.read_text(encoding="utf-8")
    drawings = [part.split("</svg>")[0] + "</svg>" for part in text.split("<svg")[1:]]
    assert len(drawings) == 3
    assert "http" not in text.replace("http-equiv", "")
    for drawing in drawings:
        root = ElementTree.fromstring("<svg" + drawing)
        for line in root.iter("polyline"):
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            assert points
            assert all(60 <= x <= 700 and 20 <= y <= 276 for x, y in points)


def test_simulate_page_names_what_sets_simulations_apart(run: Run, trace: Path, plain: Path, tmp_path: Path) -> None:
    """And shows the same sizes of every policy where there is not room for all; it says what in time means."""
    page, other = tmp_path / "page.html", tmp_path / "other.yaml"
    other.write_text(plain.read_text(encoding="utf-8").replace("ref: gpu}]", "ref: gpu}], routing: {policy: p2c}"))

    run(*("simulate", "--trace", trace, "--policy", plain, "--policy", other, "--fleet", "1..4", "--html", page))

    text = page.read_text(encoding="utf-8")
    over_time = text.split("<h2>Share in SLO over time</h2>")[1].split("<svg")[0]
    names = re.findall(r"</span>([^<]+)</span>", over_time)
    assert names == [f"{policy}, h200-8b:{size}" for size in (1, 2, 3) for policy in (plain, other)]
    assert "6 simulations of 8" in text
    assert "SLO: ttft=2s, " in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--fleet", "0"), 1, "fleet: it has no replicas"),
        ((), 1, "plain.yaml:2: backends.gpu.type: a backend of type openai cannot be simulated"),
        (("--fleet", "2", "--slo", "tpot=1ms"), 1, "slo: tpot: 1ms cannot be met"),
        (("--fleet", "2", "--load", "1", "--rate", "1"), 2, "give --load or --rate, not both"),
        (("--fleet", "2..3", "--load", "1"), 2, "give --rate instead"),
        (("--fleet", "2", "--balance", "best"), 2, "best is not one of predicted_cost"),
        (("--fleet", "2", "--html", "nowhere/page.html"), 2, "there is no such folder as nowhere"),
    ],
)
def test_simulate_what_cannot_be_is_said(
    run: Run, trace: Path, plain: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """Wrong usage and wrong files end with their exit code and a message, without a traceback."""
    result = run("simulate", "--trace", trace, "--policy", plain, *arguments)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in " ".join(result.stderr.split())


def test_simulate_torn_trace_names_its_line(run: Run, trace: Path, plain: Path) -> None:
    """A trace that breaks off is an error with file and line."""
    trace.write_text(trace.read_text(encoding="utf-8")[:-20], encoding="utf-8")

    result = run("simulate", "--trace", trace, "--policy", plain, "--fleet", "2")

    assert result.exit_code == 1
    assert f"{trace}:40: this line is torn" in result.stderr
