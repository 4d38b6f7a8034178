"""The learned router: features, isotonic steps, the regression, its figures, the file that it is learned from."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.speculation.router.evaluation import evaluate
from policies.speculation.router.isotonic import fit_rising, step_values
from policies.speculation.router.labelled import BadLabels, LabelledPrompt, read_labelled
from policies.speculation.router.learned_router import LearnedRouter, PromptScorer, learn
from policies.speculation.router.prompt_features import MAX_CHARS, NUM_FEATURES, NUM_WORDS, features_of, words_of
from policies.speculation.router.prompt_vectors import endings

SCORES = st.lists(st.tuples(st.integers(-5, 5), st.floats(-1, 1)), min_size=1, max_size=40)


def made_rows(num_rows: int, seed: int = 0) -> tuple[list[LabelledPrompt], np.ndarray]:
    """Prompts of two kinds of which only the strong model knows one, a fifth of it by chance, and their vectors."""
    random = np.random.default_rng(seed)
    rows, vectors = [], np.zeros((num_rows, 8), np.float32)
    for row in range(num_rows):
        is_hard = bool(random.integers(2))
        weak = float(random.random() < (0.2 if is_hard else 0.9))
        rows.append(LabelledPrompt(f"{'prove' if is_hard else 'add'} number {row}", weak, float(random.random() < 0.9)))
        vectors[row] = random.normal(size=8) * 0.2 + (1.0 if is_hard else -1.0)
    return rows, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@given(SCORES)
def test_isotonic_steps_rise_and_keep_the_mean(rows: list[tuple[int, float]]) -> None:
    """Steps never fall, rows of one score are in one step, and the mean of all stays."""
    scores = np.array([float(score) for score, _ in rows])
    values = np.array([value for _, value in rows])
    steps = fit_rising(scores, values)

    fitted = step_values(*steps, scores)
    assert np.all(np.diff(steps[0]) > 0)
    assert np.all(np.diff(steps[1]) > 0)
    assert fitted.mean() == pytest.approx(values.mean(), abs=1e-9)


def test_isotonic_of_scores_outside_takes_the_ends() -> None:
    """Below the first step the first value, above the last the last."""
    steps = fit_rising(np.array([1.0, 2.0]), np.array([0.0, 1.0]))

    assert step_values(*steps, np.array([-9.0, 1.5, 9.0])).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "prompt", ["", "?", "\n\n", "\ud800", "0" * 100_000, "the " * 10_000, "\u0661\u0662 \u4f60\u597d"]
)
def test_features_of_any_prompt_are_finite(prompt: str) -> None:
    """Nothing of a prompt, however strange or long, gives a number that cannot be reckoned with."""
    places, counts = words_of(prompt)

    assert features_of(prompt).shape == (NUM_FEATURES,)
    assert np.isfinite(features_of(prompt)).all()
    assert np.isfinite(counts).all()
    assert len(places) <= min(NUM_WORDS, 2 * MAX_CHARS)
    assert all(len(text) <= 1024 for text in endings(prompt))


def test_router_learns_what_tells_prompts_apart_and_outlives_its_file() -> None:
    """Unseen prompts of the hard kind get the higher gain; a router that was packed says the same."""
    rows, vectors = made_rows(400)
    gains = np.array([row.strong - row.weak for row in rows], np.float32)
    learned = learn([row.prompt for row in rows[:300]], vectors[:300], gains[:300], np.random.default_rng(0))

    unpacked = msgspec.msgpack.decode(msgspec.msgpack.encode(learned), type=LearnedRouter)
    said = PromptScorer(unpacked).gains([row.prompt for row in rows[300:]], vectors[300:])
    is_hard = np.array(["prove" in row.prompt for row in rows[300:]])
    assert said[is_hard].min() > said[~is_hard].max()
    assert said[is_hard].mean() == pytest.approx(0.7, abs=0.2)
    assert PromptScorer(learned).gain(rows[300].prompt, vectors[300]) == pytest.approx(float(said[0]), abs=1e-5)


def test_router_with_arrays_that_do_not_fit_is_refused() -> None:
    """A damaged file is noticed when it is loaded, not at the first call."""
    rows, vectors = made_rows(120)
    learned = learn([row.prompt for row in rows], vectors, np.ones(120, np.float32), np.random.default_rng(0))

    with pytest.raises(ValueError, match=r"reshape"):
        PromptScorer(msgspec.structs.replace(learned, pulls=learned.pulls[:-4]))


def test_evaluation_finds_what_can_be_recovered_and_nothing_where_there_is_nothing() -> None:
    """Two kinds of prompts are told apart nearly as well as can be; labels without any pattern give about a half."""
    rows, vectors = made_rows(600)
    random = np.random.default_rng(1)
    noise = [LabelledPrompt(row.prompt, float(random.random() < 0.5), float(random.random() < 0.8)) for row in rows]

    good = evaluate("", rows, vectors, repeats=1, note=lambda done, of: None)
    none = evaluate("", noise, vectors, repeats=1, note=lambda done, of: None)
    assert good.apgr.low <= good.apgr.value <= good.apgr.high
    assert good.apgr.value > 0.7
    assert none.apgr.low < 0.5 < none.apgr.high
    assert good.calibration_error < 0.1


def test_evaluation_without_a_gap_says_so() -> None:
    """Where the strong model is no better there is no share to speak of."""
    rows, vectors = made_rows(200)
    turned = [LabelledPrompt(row.prompt, row.strong, row.weak) for row in rows]

    with pytest.raises(ValueError, match="there is nothing to route"):
        evaluate("mmlu", turned, vectors, repeats=1, note=lambda done, of: None)


def test_labelled_file_is_read_in_both_forms(tmp_path: Path) -> None:
    """Long and short names, plain and gzipped; the id gives a set and nothing else."""
    lines = (
        b'{"id": "mmlu/a/1", "p": "x", "w": 0, "s": 1}\n\n' * 50 + b'{"prompt": "y", "weak": 0.5, "strong": 1}\n' * 50
    )
    (tmp_path / "plain").write_bytes(lines)
    (tmp_path / "packed").write_bytes(gzip.compress(lines))

    rows = read_labelled(tmp_path / "plain")
    assert rows == read_labelled(tmp_path / "packed")
    assert rows[0] == LabelledPrompt("x", 0, 1, None, "mmlu")
    assert rows[-1] == LabelledPrompt("y", 0.5, 1, None, "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "x", "weak": 1}', r'labels:101: a line has "prompt"'),
        (b'{"prompt": "x", "weak": 2, "strong": 1}', r"labels:101: .* not 2 and 1"),
        (b'{"prompt": "x", "weak": "yes", "strong": 1}', r"labels:101: Expected `float"),
        (b'{"prompt": "x", "weak": NaN, "strong": 1}', r"labels:101: "),
        (b"[" * 100_000, r"labels:101: "),
        (b'{"prompt": "\xff", "weak": 1, "strong": 1}', r"labels:101: "),
    ],
    ids=["missing", "range", "type", "nan", "deep", "utf-8"],
)
def test_labelled_file_with_a_bad_line_names_it(tmp_path: Path, line: bytes, said: str) -> None:
    """The line, and what it should have been."""
    path = tmp_path / "labels"
    path.write_bytes(b'{"p": "x", "w": 0, "s": 1}\n' * 100 + line)

    with pytest.raises(BadLabels, match=said):
        read_labelled(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8bhalf", gzip.compress(b"{}\n" * 9, mtime=0)[:-9], b'{"p": "x", "w": 0, "s": 1}\n'],
    ids=["empty", "damaged", "cut", "few"],
)
def test_labelled_file_that_is_no_use_is_refused(tmp_path: Path, data: bytes) -> None:
    """Empty, damaged, or too little to learn from."""
    (tmp_path / "labels").write_bytes(data)

    with pytest.raises(BadLabels):
        read_labelled(tmp_path / "labels")
