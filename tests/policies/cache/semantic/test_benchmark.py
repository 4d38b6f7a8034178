"""The benchmark of the semantic cache: what it counts, on sets small enough to count by hand."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from policies.cache.semantic.benchmark import __main__ as benchmark
from policies.cache.semantic.benchmark.contenders import Cosine, Entries, Exact, Pooled
from policies.cache.semantic.benchmark.figures import EXACT, NOISY, OURS, Claim, FigureRow, as_text, claims
from policies.cache.semantic.benchmark.replay import ReplayCounts, replay, upper_limit
from policies.cache.semantic.benchmark.streams import LabelledSet, QuestionStream, paired, read_set, returning, shuffled
from policies.cache.semantic.benchmark.upstream import Noise, Upstream
from policies.cache.semantic.benchmark.vcache import VCacheLike
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.static import Static
from policies.cache.semantic.decision.verified import Verified

WORDS = "abcdefghijklmno"


def stream_of(cosines_to_first: Sequence[float], meanings: Sequence[str], asked: Sequence[int]) -> QuestionStream:
    """Texts whose cosine to the first is given, in a plane."""
    angles = np.arccos(np.array(cosines_to_first))
    vectors = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    return QuestionStream([f"text {place}" for place in range(len(meanings))], meanings, vectors, asked)


def clusters(
    num: int, size: int, seed: int = 1
) -> tuple[LabelledSet, dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]]:
    """Texts around as many directions as there are meanings, near enough to be told apart mostly."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(num, 24))
    meanings = {
        f"{'abcdefghijklmnop'[place % 16]} {place} {one}": f"m{place}" for place in range(num) for one in range(size)
    }
    vectors = {}
    for text, meaning in meanings.items():
        vector = centres[int(meaning[1:])] + 0.5 * generator.normal(size=24)
        vectors[text] = (vector / np.linalg.norm(vector)).astype(np.float32)
    return LabelledSet("banking77", meanings), vectors


def test_replay_of_cosine_counts_hits_wrong_ones_and_nothing_else() -> None:
    """The second is served rightly by the first, the third wrongly, the fourth is too far."""
    stream = stream_of([1.0, 0.99, 0.95, 0.5], ["a", "a", "b", "b"], [0, 1, 2, 3])
    upstream = Upstream(stream.meanings, Random(1), Noise())
    outcome = replay(stream, Cosine(stream, upstream, 0.9), upstream)

    assert (outcome.asked, outcome.hits, outcome.wrong, outcome.checks) == (4, 2, 1, 0)
    assert outcome.saved_rate == 0.5


def test_replay_of_exact_serves_what_comes_back() -> None:
    """By the text alone, never wrongly."""
    stream = stream_of([1.0, 0.99], ["a", "a"], [0, 1, 0, 1, 1])
    upstream = Upstream(stream.meanings, Random(1), Noise())
    outcome = replay(stream, Exact(stream, upstream), upstream)

    assert (outcome.hits, outcome.wrong, upstream.num_calls) == (3, 0, 2)


def test_replay_of_pairs_holds_one_question_at_a_time() -> None:
    """A pair's first text is served to its second or to nobody."""
    rows = LabelledSet("qqp", {}, (("a", "b", True), ("c", "d", False), ("a", "c", False)))
    near = np.array([1.0, 0.0], np.float32)
    far = np.array([0.0, 1.0], np.float32)
    stream = paired(rows, {"a": near, "b": near, "c": far, "d": far}, 1)
    upstream = Upstream(stream.meanings, Random(1), Noise())
    outcome = replay(stream, Cosine(stream, upstream, 0.9), upstream)

    assert (outcome.asked, outcome.hits, outcome.wrong) == (3, 2, 1)


def test_pooled_pays_for_checks_and_keeps_what_they_tell() -> None:
    """What is checked is served, costs a call, and makes the text an exact hit."""
    stream = stream_of([1.0, 0.99], ["a", "a"], [0, *[1] * 400])
    upstream = Upstream(stream.meanings, Random(1), Noise())
    contender = Pooled(stream, upstream, Static(0.9, Random(2)))
    outcome = replay(stream, contender, upstream)

    assert outcome.hits == 400
    assert outcome.checks == 1
    assert contender.num_decided < 400
    assert contender.cpu_s > 0.0


def test_pooled_ends_an_answer_that_was_found_wrong_twice() -> None:
    """Its entries go, all of them, and the texts are no exact hits any more; another answer stays."""
    stream = stream_of([1.0, 0.99, 0.98], ["a", "a", "b"], [])
    upstream = Upstream(stream.meanings, Random(1), Noise())
    contender = Pooled(stream, upstream, Static(0.999, Random(2)))
    for query in (0, 1, 2):
        contender.ask(query)
    contender._record(0, False, matters=False)
    contender._record(0, False, matters=True)
    assert contender.ask(1) == 1

    contender._record(0, False, matters=True)

    assert [entry for entry, _ in contender._entries.nearest(0, 9)] == [2]
    assert contender.ask(1) is None


@pytest.mark.parametrize(("pace", "num_kept", "num_answers"), [(math.inf, 40, 1), (1.0, 40, 1), (0.0, 17, 17)])
def test_pooled_keeps_no_answer_for_which_there_is_no_room(pace: float, num_kept: int, num_answers: int) -> None:
    """Sixteen wait beside the first, which has nothing to be compared with; all that is compared becomes one answer."""
    stream = stream_of([1.0 - place / 100 for place in range(40)], ["a"] * 40, range(40))
    upstream = Upstream(stream.meanings, Random(1), Noise())
    contender = Pooled(stream, upstream, Static(1.0, Random(2)), pace=pace)
    replay(stream, contender, upstream)

    assert len(contender._entries.nearest(0, 99)) == num_kept
    assert len({contender._answer_ids[entry] for entry, _ in contender._entries.nearest(0, 99)}) == num_answers


def test_pooled_verified_serves_within_its_bound() -> None:
    """The whole loop on made clusters: hits, few of them wrong."""
    rows, vectors = clusters(16, 120)
    stream = shuffled(rows, vectors, 1)
    upstream = Upstream(stream.meanings, Random(1), Noise())
    outcome = replay(stream, Pooled(stream, upstream, Verified(Bound(), Random(2))), upstream)

    assert outcome.hit_rate > 0.2
    assert outcome.wrong_rate <= 0.015
    assert outcome.saved_rate < outcome.hit_rate


def test_vcache_like_asks_four_times_before_an_entry_serves() -> None:
    """And serves an entry whose observations are all right, at last."""
    stream = stream_of([1.0, *[0.99] * 60], ["a"] * 61, range(61))
    upstream = Upstream(stream.meanings, Random(1), Noise())
    contender = VCacheLike(stream, upstream, Random(3), 0.05)
    served = [contender.ask(query) for query in stream.asked]

    assert served[:5] == [None] * 5
    assert any(answer == 0 for answer in served)


def test_vcache_like_keeps_other_answers_apart() -> None:
    """A different answer becomes an entry, the same answer does not."""
    stream = stream_of([1.0, 0.9, 0.99], ["a", "b", "a"], [0, 1, 2])
    upstream = Upstream(stream.meanings, Random(1), Noise())
    contender = VCacheLike(stream, upstream, Random(3), 0.01)
    for query in stream.asked:
        contender.ask(query)

    assert [entry for entry, _ in contender._entries.nearest(2, 9)] == [0, 1]


def test_upstream_comparisons_err_as_often_as_they_are_said_to() -> None:
    """Alarms need two comparators; what passes needs one."""
    upstream = Upstream(["a", "a", "b"], Random(1), Noise(alarms=0.2, passed=0.1))
    same = sum(upstream.is_same(0, 1) for _ in range(5000))
    passed = sum(upstream.is_same(0, 2) for _ in range(5000))

    assert 4720 <= same <= 4880
    assert 430 <= passed <= 570
    assert upstream.is_right(0, 1)
    assert not upstream.is_right(0, 2)


def test_entries_are_found_nearest_first_and_go_when_removed() -> None:
    """A text is there once however often it is added."""
    stream = stream_of([1.0, 0.9, 0.5], ["a", "b", "c"], [])
    entries = Entries(stream)
    for query in (2, 1, 1):
        entries.add(query)

    assert [entry for entry, _ in entries.nearest(0, 5)] == [1, 2]
    assert [entry for entry, _ in entries.nearest(0, 1)] == [1]
    entries.remove({1})
    assert [entry for entry, _ in entries.nearest(0, 5)] == [2]
    entries.clear()
    assert entries.nearest(0, 5) == []


def test_streams_depend_on_the_seed_alone() -> None:
    """The same seed asks the same questions."""
    rows, vectors = clusters(4, 5)

    assert shuffled(rows, vectors, 1).texts == shuffled(rows, vectors, 1).texts
    assert shuffled(rows, vectors, 1).texts != shuffled(rows, vectors, 2).texts
    assert list(returning(rows, vectors, 3).asked) == list(returning(rows, vectors, 3).asked)
    assert len(returning(rows, vectors, 3).asked) == 3000


@pytest.mark.parametrize(("wrong", "asked", "limit"), [(0, 100, 0.0295), (5, 1000, 0.0105), (10, 10, 1.0)])
def test_upper_limit_is_clopper_and_pearsons(wrong: int, asked: int, limit: float) -> None:
    """Against values of their table."""
    assert upper_limit(wrong, asked) == pytest.approx(limit, rel=0.01)


def test_claims_are_held_against_the_rows() -> None:
    """Hits below what is asked, wrong ones above it, and a rival that is better within one percent are told."""

    def row(policy: str, hits: int, wrong: int) -> FigureRow:
        return FigureRow("banking77", policy, (ReplayCounts(100, hits, wrong, 0, cpu_us=10.0),))

    made = claims([row(OURS, 40, 2), row(EXACT, 0, 0), row("cosine 0.9", 45, 1), row(NOISY, 99, 0)])
    held = {claim.name.partition(": ")[2]: claim.holds for claim in made}

    assert held["hits, mean"] is False
    assert held["wrong, worst seed"] is False
    assert held["hits above the best of the others within 1 % wrong"] is False
    assert held["spread of hits over seeds, points"] is True
    assert Claim("at the limit", 1.0, most=1.0).holds
    assert "missed" in as_text([row(OURS, 40, 2)], made)


def write_set(folder: Path, rows: LabelledSet) -> None:
    """As the data folder has it."""
    with gzip.open(folder / f"{rows.name}_made.jsonl.gz", "wt", encoding="utf-8") as file:
        for text, meaning in rows.meanings.items():
            file.write(json.dumps({"text": text, "cluster": meaning}) + "\n")


def test_read_set_takes_clusters_and_pairs(tmp_path: Path) -> None:
    """One JSON object a line; a set that is not there is told with its folder."""
    rows, _ = clusters(2, 2)
    write_set(tmp_path, rows)
    with gzip.open(tmp_path / "qqp_made.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"a": "x", "b": "y", "y": 1}\n')

    assert read_set(tmp_path, "banking77").meanings == rows.meanings
    assert read_set(tmp_path, "qqp").pairs == (("x", "y", True),)
    assert read_set(tmp_path, "qqp").texts == ["x", "y"]
    with pytest.raises(FileNotFoundError, match="clinc150"):
        read_set(tmp_path, "clinc150")


def test_benchmark_prints_tables_and_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From files to both tables, without an encoder where all vectors are known; what is missed is its exit code."""
    rows, vectors = clusters(6, 25)
    write_set(tmp_path, rows)
    listed = np.frombuffer(json.dumps(list(vectors)).encode(), np.uint8)
    np.savez(tmp_path / "banking77.npz", texts=listed, vectors=np.stack(list(vectors.values())))
    file = tmp_path / "figures.json"
    code = benchmark.main(
        ["--data", str(tmp_path), "--set", "banking77", "--seeds", "2", "--vectors", str(tmp_path), "--json", str(file)]
    )
    captured = capsys.readouterr()
    figures = json.loads(file.read_text(encoding="utf-8"))

    # With 150 questions nothing is learned in time, so the hits are missed and nothing is wrong.
    assert code == 1
    assert "cosine 0.9" in captured.out
    assert "banking77: hits, mean" in captured.out
    assert "banking77, seed 2" in captured.err
    assert {row["policy"] for row in figures["rows"]} >= {"verified", "verified, noise", "vCache-like", "exact only"}
    assert any(not figure["holds"] for figure in figures["figures"])
    assert all(len(row["hits"]) == 2 for row in figures["rows"])


def test_benchmark_without_its_data_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and no traceback."""
    assert benchmark.main(["--data", str(tmp_path), "--set", "qqp"]) == 2
    assert "there is no qqp_*.jsonl.gz" in capsys.readouterr().err


def test_benchmark_of_an_absurd_bound_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is read."""
    assert benchmark.main(["--data", str(tmp_path), "--max-wrong-hit-rate", "1"]) == 2
    assert "max_wrong_hit_rate is 1.0" in capsys.readouterr().err


def test_progress_on_a_terminal_is_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """Rewritten in place, and gone at the end."""
    progress = benchmark.ReplayProgress(is_terminal=True)
    progress.note("encoding", 1, 2)
    progress.done()

    assert "[###############               ] 1/2" in capsys.readouterr().err
