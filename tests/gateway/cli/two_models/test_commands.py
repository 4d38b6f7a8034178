"""`slipstream eval-router` and `slipstream calibrate`, on made-up labels whose vectors are already kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from backends.errors import ConfigurationError
from policies.speculation.cascade.calibration import read_calibration
from tests.support.cli import Run


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Prompts of two kinds, of which only the strong model knows one, beside a folder with their vectors."""
    random = np.random.default_rng(0)
    lines, prompts, vectors = [], [], []
    for number in range(240):
        is_hard = number % 2 == 0
        prompts.append(f"{'prove' if is_hard else 'add'} number {number}")
        vectors.append(random.normal(size=8) * 0.2 + (1.0 if is_hard else -1.0))
        weak = int(random.random() < (0.2 if is_hard else 0.95))
        lines.append(
            {"id": f"made/{number}", "prompt": prompts[-1], "weak": weak, "strong": int(random.random() < 0.9)}
        )
    folder = tmp_path / "vectors"
    folder.mkdir()
    rows = np.array(vectors, np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.savez(folder / "prompts.npz", texts=np.frombuffer(json.dumps(prompts).encode(), np.uint8), vectors=rows)
    path = tmp_path / "labelled.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_eval_router_prints_what_is_recovered(run: Run, labelled: Path, tmp_path: Path) -> None:
    """A table for each set, and the same figures as JSON."""
    figures = tmp_path / "figures.json"
    result = run("eval-router", labelled, "--repeats", 1, "--vectors", tmp_path / "vectors", "--json", figures)

    assert result.exit_code == 0, result.output
    (of_set,) = json.loads(figures.read_bytes())
    assert of_set["set"] == "made"
    assert of_set["apgr"]["value"] > 0.65
    assert len(of_set["recovered"]) == 9


def test_eval_router_of_a_bad_file_says_which_line(run: Run, tmp_path: Path) -> None:
    """Nothing is computed, and the exit code says that it could not be."""
    path = tmp_path / "labelled.jsonl"
    path.write_text('{"prompt": "x"}\n', encoding="utf-8")

    assert run("eval-router", path).exit_code == 2


def test_calibrate_writes_what_a_cascade_goes_by(run: Run, labelled: Path, tmp_path: Path) -> None:
    """A file whose thresholds let the draft answer more calls the less quality is asked for."""
    out = tmp_path / "pair.cascade"
    result = run("calibrate", "--on", labelled, "--out", out, "--quality", 0.9, "--vectors", tmp_path / "vectors")

    assert result.exit_code == 0, result.output
    calibration = read_calibration(out, "router", 0.9)
    strict, loose = calibration.threshold(0.9), calibration.threshold(0.5)
    assert strict is not None
    assert loose is not None
    assert strict.share <= loose.share
    assert strict.score >= loose.score
    assert calibration.encoder.startswith("torch:float32:8:")


def test_calibrate_by_scores_needs_no_encoder(run: Run, tmp_path: Path) -> None:
    """Where an answer's own score decides, it is all that is read; lines without one are refused."""
    lines = [{"prompt": "x", "weak": int(row % 4 > 0), "strong": 1, "score": float(row % 4)} for row in range(400)]
    path, out = tmp_path / "labelled.jsonl", tmp_path / "pair.cascade"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    assert run("calibrate", "--on", path, "--out", out, "--accept", "logprob", "--quality", 0.99).exit_code == 0
    found = read_calibration(out, "logprob", 0.99).threshold(0.99)
    assert found is not None
    assert (found.score, found.share) == (1.0, 0.75)
    path.write_text('{"prompt": "x", "weak": 1, "strong": 1}\n' * 200, encoding="utf-8")
    assert run("calibrate", "--on", path, "--out", out, "--accept", "logprob").exit_code == 2


def test_calibrate_where_nothing_keeps_the_quality_says_so(run: Run, tmp_path: Path) -> None:
    """A draft that is never right keeps no quality, and the file is refused by a policy that asks for it."""
    path, out = tmp_path / "labelled.jsonl", tmp_path / "pair.cascade"
    path.write_text('{"prompt": "x", "weak": 0, "strong": 1, "score": 0.5}\n' * 200, encoding="utf-8")

    assert run("calibrate", "--on", path, "--out", out, "--accept", "verifier").exit_code == 1
    with pytest.raises(ConfigurationError, match=r"no threshold keeps quality 0\.95"):
        read_calibration(out, "verifier", 0.95)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"there is no such file: `slipstream calibrate --on labelled\.jsonl --out .*pair\.cascade` writes it"),
        (b"", "is no calibration of a cascade"),
        (b"slipstream cascade 1\n" + bytes(12), "is no calibration of a cascade"),
        (b"slipstream cascade 0\n" + bytes(100), "is no calibration of a cascade"),
    ],
    ids=["missing", "empty", "torn", "version"],
)
def test_calibration_that_is_none_is_refused_with_what_to_do(tmp_path: Path, content: bytes | None, said: str) -> None:
    """Missing, empty, torn and of another version."""
    path = tmp_path / "pair.cascade"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigurationError, match=said):
        read_calibration(path, "router", 0.9)


def test_calibration_for_another_way_is_refused(run: Run, tmp_path: Path) -> None:
    """A threshold of log-probabilities says nothing to a router."""
    path, out = tmp_path / "labelled.jsonl", tmp_path / "pair.cascade"
    path.write_text('{"prompt": "x", "weak": 1, "strong": 1, "score": -0.5}\n' * 200, encoding="utf-8")
    run("calibrate", "--on", path, "--out", out, "--accept", "logprob")

    with pytest.raises(ConfigurationError, match="is a calibration for accept: logprob, and not for accept: router"):
        read_calibration(out, "router", 0.9)
