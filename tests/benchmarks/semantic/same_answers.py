"""How well the gateway tells without a judge whether two answers say the same: labelled pairs, and answers worded anew.

    python -m tests.benchmarks.semantic.same_answers --data DIR [--tool DIR] [--kinds] [--pairs 300] [--vectors FILE]

`--data` has `answers_traps_dev.jsonl.gz` and `paraqa_dev.jsonl.gz`, rows of `a`, `b`, `y` (1: they say the same) and
`kind`; of the second set those that were read (`read` is 1), and as many that differ. `--tool` has `eval_policy.py`,
whose made-up answers state the same facts in other words: pairs of one meaning, and of two, half of which differ in one
fact alone. Told is, of those that say the same, how many are called the same, and how many different; of those that do
not, how many are called the same. With `--kinds` that is told of each kind of pair too.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import importlib.util
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from backends.protocol import Charge
from policies.cache.semantic.contracts import Vector
from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import TransformerModel
from policies.cache.semantic.learning.comparators import AnswerVerdict, Comparison

_MODES = ("mild", "free", "long")
_NUM_MEANINGS = 120


class Pair(NamedTuple):
    """Two answers of a set, and whether they say the same."""

    set: str
    kind: str
    left: str
    right: str
    is_same: bool


class InProcess:
    """An `Encoder` in this process, which remembers what it has encoded, also in a file."""

    dimension = 384
    fingerprint = "in process"

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._model: TransformerModel | None = None
        self._known: dict[str, Vector] = {}
        if file is not None and file.exists():
            with np.load(file) as kept:
                self._known = dict(zip(json.loads(kept["texts"].tobytes()), kept["vectors"], strict=True))

    async def open(self) -> None:
        """Nothing yet: what is known needs no model."""

    async def aclose(self) -> None:
        """Keep what is known."""
        if self._file is not None and self._model is not None:
            texts = np.frombuffer(json.dumps(list(self._known)).encode(), np.uint8)
            np.savez(self._file, texts=texts, vectors=np.stack(list(self._known.values())))

    async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
        """Its vector, of length 1."""
        vector = self._known.get(text)
        if vector is None:
            self._model = self._model or TransformerModel(find_folder(None), threads=1)
            (row,) = self._model.embed([text])
            vector = self._known[text] = row / max(float(np.linalg.norm(row)), 1e-9)
        return vector


def labelled(data: Path) -> Iterator[Pair]:
    """Those of the two files."""
    for row in _rows(data / "answers_traps_dev.jsonl.gz"):
        yield Pair("traps", row["kind"], row["a"], row["b"], row["y"] == 1)
    rows = _rows(data / "paraqa_dev.jsonl.gz")
    read = [row for row in rows if row["y"] == 1 and row.get("read") == 1]
    others = Random(1).sample([row for row in rows if row["y"] == 0], 3 * len(read))
    for row in (*read, *others):
        yield Pair("paraqa", row["kind"], row["a"], row["b"], row["y"] == 1)


def worded_anew(tool: Path, num_pairs: int) -> Iterator[Pair]:
    """Those of the tool."""
    path = tool / "eval_policy.py"
    spec = importlib.util.spec_from_file_location("eval_policy", path)
    assert spec is not None, "a file of Python"
    assert spec.loader is not None, "a file of Python"
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["eval_policy"] = module
    spec.loader.exec_module(module)
    words = json.loads((tool / "wordings.json").read_text(encoding="utf-8"))
    names = [f"meaning {number}" for number in range(_NUM_MEANINGS)]
    for mode in _MODES:
        book, random = module.Book(words, names, mode, 1), Random(1)
        for number in range(num_pairs):
            name = random.choice(names)
            yield Pair(mode, "same", *(book.say(name, False, f"{number} {side}") for side in "ab"), True)
            one, other = random.choice(book.near) if number % 2 else random.sample(names, 2)
            kind = "one fact differs" if number % 2 else "another matter"
            yield Pair(mode, kind, book.say(one, False, f"{number} c"), book.say(other, False, f"{number} d"), False)


async def compare(pairs: list[Pair], vectors: Path | None) -> list[AnswerVerdict]:
    """What each is called."""
    encoder = InProcess(vectors)
    comparison = Comparison(encoder, None)
    verdicts = []
    for number, pair in enumerate(pairs):
        verdicts.append(await comparison.compare("", pair.left, pair.right, may_ask=False))
        print(f"\r{number + 1} of {len(pairs)} pairs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    await encoder.aclose()
    return verdicts


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


def main() -> None:
    """Prints a line a set, or a kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tool", type=Path)
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--pairs", type=int, default=300, help="of each wording")
    parser.add_argument("--vectors", type=Path, help="a file that keeps vectors between runs (.npz)")
    options = parser.parse_args()
    pairs = [*labelled(options.data), *(worded_anew(options.tool, options.pairs) if options.tool else ())]
    counts: dict[tuple[str, str], Counter[tuple[bool, AnswerVerdict]]] = defaultdict(Counter)
    for pair, verdict in zip(pairs, asyncio.run(compare(pairs, options.vectors)), strict=True):
        counts[pair.set, ""][pair.is_same, verdict] += 1
        if options.kinds:
            counts[pair.set, f"{pair.kind}, {'same' if pair.is_same else 'not'}"][pair.is_same, verdict] += 1
    print(f"{'':36}of the same: called so   different   of others: called the same")
    for (name, kind), counted in sorted(counts.items()):
        print(f"{name if not kind else '  ' + kind:36}{_told(counted)}   of {counted.total()}")


if __name__ == "__main__":
    main()
