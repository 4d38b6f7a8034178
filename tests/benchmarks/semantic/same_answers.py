"""How well the gateway tells without a judge whether two answers say the same: labelled pairs, and answers worded anew.

    python -m tests.benchmarks.semantic.same_answers [--data DIR] [--tool DIR] [--kinds] [--pairs 300] [--words]

The hard ones are in the tree: 240 pairs of answers as assistants write them, in other words and other form, or with one
thing that matters changed, written without knowing what compares them and never trained on.
`--data` has `answers_traps_dev.jsonl.gz` and `paraqa_dev.jsonl.gz`, rows of `a`, `b`, `y` (1: they say the same) and
`kind`; of the second set those that were read (`read` is 1), and those that differ and share texts with them: the heads
are trained on others. `--tool` has
`eval_policy.py`, whose made-up answers state the same facts in other words: pairs of one meaning, and of two, half of
which differ in one fact alone. Told is, of those that say the same, how many are called the same (from a probability of
SAME_FROM on), and how many different (up to DIFFERENT_TO); of those that do not, how many are called the same; then how
often pairs of each probability do say the same. With `--kinds` the first is told of each kind of pair too; with
`--words` answers are compared by words alone, as where an encoder tells no tokens.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import TransformerModel
from policies.cache.semantic.learning.comparators import (
    DIFFERENT_TO,
    SAME_FROM,
    AnswerVerdict,
    probability_of,
    verdict_of,
)
from policies.cache.semantic.sameness.reader import Reader
from policies.cache.semantic.sameness.training.examples import paraqa_rows, unseen

_HARD = Path(__file__).parent / "hard_answers.jsonl"
_MODES = ("mild", "free", "long")
_NUM_MEANINGS = 120
_BINS = (0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 1.01)


class Pair(NamedTuple):
    """Two answers of a set, and whether they say the same."""

    set: str
    kind: str
    left: str
    right: str
    is_same: bool


def hard() -> Iterator[Pair]:
    """Those of the tree."""
    for line in _HARD.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield Pair("hard", row["kind"], row["a"], row["b"], row["y"] == 1)


def labelled(data: Path) -> Iterator[Pair]:
    """Those of the two files."""
    for row in _rows(data / "answers_traps_dev.jsonl.gz"):
        yield Pair("traps", row["kind"], row["a"], row["b"], row["y"] == 1)
    for row in unseen(paraqa_rows(data / "paraqa_dev.jsonl.gz")):
        yield Pair("paraqa", row.kind, row.a, row.b, row.y == 1)


def book_of(tool: Path, meanings: list[str], mode: str, seed: int) -> Any:
    """What says an answer of each meaning: `say(meaning, is_changed, call)`, `near` pairs of meanings."""
    path = tool / "eval_policy.py"
    spec = importlib.util.spec_from_file_location("eval_policy", path)
    assert spec is not None, "a file of Python"
    assert spec.loader is not None, "a file of Python"
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["eval_policy"] = module
    spec.loader.exec_module(module)
    words = json.loads((tool / "wordings.json").read_text(encoding="utf-8"))
    return module.Book(words, meanings, mode, seed)


def worded_anew(tool: Path, num_pairs: int) -> Iterator[Pair]:
    """Those of the tool."""
    names = [f"meaning {number}" for number in range(_NUM_MEANINGS)]
    for mode in _MODES:
        book, random = book_of(tool, names, mode, 1), Random(1)
        for number in range(num_pairs):
            name = random.choice(names)
            yield Pair(mode, "same", *(book.say(name, False, f"{number} {side}") for side in "ab"), True)
            one, other = random.choice(book.near) if number % 2 else random.sample(names, 2)
            kind = "one fact differs" if number % 2 else "another matter"
            yield Pair(mode, kind, book.say(one, False, f"{number} c"), book.say(other, False, f"{number} d"), False)


def compare(pairs: list[Pair], *, has_tokens: bool) -> list[float | None]:
    """How probably each says the same."""
    reader = Reader(TransformerModel(find_folder(None), threads=1) if has_tokens else None)
    told: list[float | None] = []
    for number, pair in enumerate(pairs):
        compared = reader.compare(pair.left, pair.right)
        while not compared.is_done:
            compared = reader.compare(pair.left, pair.right)
        told.append(probability_of(compared.log_odds))
        if sys.stderr.isatty():
            print(
                f"\r{number + 1} of {len(pairs)} pairs",
                end="\n" * (number + 1 == len(pairs)),
                file=sys.stderr,
                flush=True,
            )
    return told


def _rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _told(counts: Counter[tuple[bool, AnswerVerdict]]) -> str:
    def share(is_same: bool, verdict: AnswerVerdict) -> str:
        of = sum(count for (truth, _), count in counts.items() if truth is is_same)
        return f"{100 * counts[is_same, verdict] / of:7.1f} %" if of else "        -"

    return "   ".join(
        (share(True, AnswerVerdict.SAME), share(True, AnswerVerdict.DIFFERENT), share(False, AnswerVerdict.SAME))
    )


def _reliability(pairs: list[Pair], told: list[float | None]) -> Iterator[str]:
    """A line for each bin of probabilities: pairs, mean probability, share that says the same."""
    for low, high in pairwise(_BINS):
        bin_ = [(p, pair.is_same) for pair, p in zip(pairs, told, strict=True) if p is not None and low <= p < high]
        if bin_:
            mean, share = (sum(values) / len(bin_) for values in zip(*bin_, strict=True))
            yield f"{low:6.2f} to {min(high, 1):4.2f} {len(bin_):8} {mean:12.3f} {share:12.3f}"


def main() -> None:
    """Prints a line a set, or a kind, and the table of probabilities."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tool", type=Path)
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--pairs", type=int, default=300, help="of each wording")
    parser.add_argument("--words", action="store_true")
    options = parser.parse_args()
    pairs = [
        *hard(),
        *(labelled(options.data) if options.data else ()),
        *(worded_anew(options.tool, options.pairs) if options.tool else ()),
    ]
    told = compare(pairs, has_tokens=not options.words)
    counts: dict[tuple[str, str], Counter[tuple[bool, AnswerVerdict]]] = defaultdict(Counter)
    for pair, probability in zip(pairs, told, strict=True):
        verdict = verdict_of(probability)
        counts[pair.set, ""][pair.is_same, verdict] += 1
        if options.kinds:
            counts[pair.set, f"{pair.kind}, {'same' if pair.is_same else 'not'}"][pair.is_same, verdict] += 1
    print(f"{'':36}of the same: called so   different   of others: called the same")
    for (name, kind), counted in sorted(counts.items()):
        print(f"{name if not kind else '  ' + kind:36}{_told(counted)}   of {counted.total()}")
    print(f"\ncalled the same from {SAME_FROM}, different up to {DIFFERENT_TO}; not looked at: {told.count(None)}")
    print("probability       pairs    mean of it   are the same")
    for line in _reliability(pairs, told):
        print(line)


if __name__ == "__main__":
    main()
