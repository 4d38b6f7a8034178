"""`slipstream eval`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.cli import Run
from tests.support.engine.tiny_pair import Pair, make_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two tiny random models."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text of 212 bytes, which are as many tokens."""
    path = tmp_path / "notes.txt"
    path.write_text("Seven grey geese, one by one, cross the frozen lake. " * 4, encoding="utf-8")
    return path


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Two questions."""
    path = tmp_path / "questions.jsonl"
    lines = [
        {"prompt": "2 + 2 =", "answer": " 4"},
        {"messages": [{"role": "user", "content": "Hello"}], "answer": "Hi!"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_eval_text_prints_a_row_for_each_model(run: Run, pair: Pair, text: Path) -> None:
    """The plain model, each method and the other model, with what has changed against the first."""
    options = ("--quantization", "int8", "--quantization", "int4", "--against", pair.draft, "--device", "cpu")
    result = run("eval", pair.target, text, *options)

    assert result.exit_code == 0, result.stderr
    assert f"{text}: 211 bytes, 211 tokens, read in windows of 512\n" in result.stdout
    rows = [re.split(r"\s{2,}", line) for line in result.stdout.splitlines()[2:]]
    assert rows[0] == ["model", "weights", "perplexity a token", "a byte", "change a byte"]
    assert [row[0] for row in rows[1:]] == ["target", "target, int8", "target, int4", "draft"]
    assert [len(row) for row in rows[1:]] == [4, 5, 5, 5]
    assert all(re.fullmatch(r"[+-][\d.]+%", row[4]) for row in rows[2:])


def test_eval_json_has_plain_numbers(run: Run, pair: Pair, text: Path) -> None:
    """For programs: every figure of every model, at the context that was asked for."""
    options = ("--quantization", "int8", "--context", 64, "--json", "--device", "cpu")
    answer = json.loads(run("eval", pair.target, text, *options).stdout)

    plain, rounded = answer["models"]
    assert answer["context"] == 64
    assert (plain["quantization"], rounded["quantization"]) == (None, "int8")
    assert (plain["tokens"], plain["bytes"]) == (211, 211)
    assert plain["token_perplexity"] == pytest.approx(plain["byte_perplexity"])
    assert rounded["token_perplexity"] == pytest.approx(plain["token_perplexity"], rel=0.3)
    assert rounded["weight_bytes"] != plain["weight_bytes"]


def test_eval_questions_print_exact_share_and_logprob(run: Run, pair: Pair, questions: Path) -> None:
    """Answers have a share and a log-probability; one model alone has no change."""
    result = run("eval", pair.target, questions, "--device", "cpu")

    head, columns, row = (line for line in result.stdout.splitlines() if line)
    assert head == f"{questions}: 2 answers"
    assert re.split(r"\s{2,}", columns) == ["model", "weights", "exact", "log-probability of an answer"]
    assert re.fullmatch(r"target +[\d.]+ KiB +[\d.]+% +-[\d.]+", row)


def test_eval_of_the_same_model_changes_nothing(run: Run, pair: Pair, questions: Path) -> None:
    """A model against itself differs by nothing."""
    result = run("eval", pair.target, questions, "--against", pair.target, "--device", "cpu")

    assert "+0.0 points, +0.000" in result.stdout


def test_eval_bad_line_is_named_before_the_model_is_loaded(run: Run, pair: Pair, questions: Path) -> None:
    """A line that cannot be used is a problem of the file."""
    questions.write_text('{"prompt": "a"}\n', encoding="utf-8")
    result = run("eval", pair.target, questions, "--device", "cpu")

    assert result.exit_code == 1
    assert f'{questions}, line 1: expected an object with a text as "answer"' in result.stderr


def test_eval_file_that_is_not_utf8_is_named(run: Run, pair: Pair, text: Path) -> None:
    """Bytes that are no text are a problem of the file."""
    text.write_bytes(b"\xff\xfe\x00")
    result = run("eval", pair.target, text, "--device", "cpu")

    assert result.exit_code == 1
    assert f"{text} is not UTF-8" in result.stderr


def test_eval_other_kind_of_file_is_wrong_usage(run: Run, pair: Pair, tmp_path: Path) -> None:
    """What is to be measured is told by the file's ending."""
    path = tmp_path / "notes.md"
    path.touch()
    result = run("eval", pair.target, path)

    assert result.exit_code == 2
    assert f"{path} is neither a .txt nor a .jsonl file" in result.stderr


def test_eval_context_beyond_the_model_is_wrong_usage(run: Run, pair: Pair, text: Path) -> None:
    """A context that the model was not made for is refused, with its own."""
    result = run("eval", pair.target, text, "--context", 513)

    assert result.exit_code == 2
    assert "the model was made for 512 tokens" in result.stderr


def test_eval_does_not_round_weights_twice(run: Run, pair: Pair, text: Path, tmp_path: Path) -> None:
    """A folder that was made smaller already cannot be compared with itself made smaller, but against its original."""
    small = tmp_path / "small"
    run("quantize", pair.target, small, "--method", "int8")
    twice = run("eval", small, text, "--quantization", "int4")
    against = run("eval", pair.target, text, "--against", small, "--device", "cpu")

    assert twice.exit_code == 2
    assert f"the weights in {small} are rounded already" in twice.stderr
    assert against.exit_code == 0, against.stderr
    assert re.search(r"^small .*%$", against.stdout, re.MULTILINE)


def test_eval_folder_without_a_model_is_a_problem_of_the_folder(run: Run, text: Path, tmp_path: Path) -> None:
    """A folder that holds no model is named."""
    result = run("eval", tmp_path, text)

    assert result.exit_code == 1
    assert f"{tmp_path / 'config.json'} does not exist" in result.stderr
