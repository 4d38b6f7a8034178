"""`python -m tests.benchmarks.semantic.worded_answers`: the semantic cache where the backend words each answer anew.

It replays labelled questions in process: the verified decision, and the reader that compares answers in a gateway. What
the backend says comes from `eval_policy.py` (`--tool`), whose made-up answers state the same facts in other words for
each question; a fifth of all meanings differ from another in one fact. Streams are those of `decision`. Prints percent
of look-ups, then what the reader made of pairs of answers: of those that say the same, how many were called the same
(from a probability of SAME_FROM on), and how many different (up to DIFFERENT_TO); of the others, how many were called
the same; and the processor's time for a comparison, and for all of a question that went to the backend.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from policies.cache.semantic.benchmark.contenders import CacheContender, Cosine, Exact, Pooled
from policies.cache.semantic.benchmark.replay import replay
from policies.cache.semantic.benchmark.streams import (
    LabelledSet,
    QuestionStream,
    drifting,
    read_set,
    returning,
    shuffled,
)
from policies.cache.semantic.benchmark.upstream import Noise, Upstream
from policies.cache.semantic.benchmark.vcache import VCacheLike
from policies.cache.semantic.benchmark.vectors import encode_all
from policies.cache.semantic.contracts import Vector
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.verified import Verified
from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import TransformerModel
from policies.cache.semantic.learning.comparators import DIFFERENT_TO, SAME_FROM, probability_of
from policies.cache.semantic.learning.rewording import Rewording
from policies.cache.semantic.sameness.reader import Reader
from policies.cache.semantic.sameness.words import share_words, worded_most_like
from tests.benchmarks.semantic.same_answers import book_of

_Make = Callable[[QuestionStream, Upstream], CacheContender]
_RIVALS: dict[str, _Make] = {
    "exact alone": Exact,
    "cosine 0.6": lambda questions, upstream: Cosine(questions, upstream, 0.6),
    "cosine 0.9": lambda questions, upstream: Cosine(questions, upstream, 0.9),
    "vCache-like": lambda questions, upstream: VCacheLike(questions, upstream, Random(1), 0.01),
}
"""GPTCache's default, RedisVL's default, and vCache with our comparison of answers."""

WORDINGS = ("one", "mild", "free", "long")
_CHANGED = ", changed"


class WordedUpstream(Upstream):
    """Says each answer in words of its own; `book` is None where each meaning has one wording."""

    def __init__(self, meanings: list[str], random: Random, reader: Reader, book: Any, changes_at: int | None) -> None:
        super().__init__(meanings, random, Noise(), changes_at=changes_at)
        self._reader = reader
        self._book = book
        if book is not None:
            self._changing = frozenset(book.changed)
        self._rewording = Rewording()
        self._texts: dict[int, str] = {}
        self.told: Counter[tuple[bool, str]] = Counter()
        self.cpu_s = 0.0

    def answer(self, query: int) -> int:
        """As asked now."""
        super().answer(query)
        said = self._what_it_said(query)
        meaning = said.removesuffix(_CHANGED)
        self._texts[query] = (
            f"The answer to this is {said}."
            if self._book is None
            # By the question, so that two trees are given the same answers.
            else self._book.say(meaning, said != meaning, f"{query}")
        )
        return query

    def worded_most_like(self, query: int, others: Sequence[int]) -> int:
        """As the gateway chooses."""
        return others[worded_most_like(self._texts[query], [self._texts[other] for other in others])]

    def share_words(self, left: int, right: int) -> bool:
        """As the gateway chooses."""
        return share_words(self._texts[left], self._texts[right])

    def compare(self, left: int, right: int) -> float:
        """As the gateway does; what it cannot look at is wrong."""
        began = time.process_time()
        compared = self._reader.compare(self._texts[left], self._texts[right])
        while not compared.is_done:
            compared = self._reader.compare(self._texts[left], self._texts[right])
        self.cpu_s += time.process_time() - began
        log_odds = compared.log_odds
        sameness = probability_of(None if log_odds is None else self._rewording.weighed(log_odds)) or 0.0
        is_same = super().compare(left, right) > 0.5
        verdict = "same" if sameness >= SAME_FROM else "different" if sameness <= DIFFERENT_TO else "unknown"
        self.told[is_same, verdict] += 1
        return sameness


def main(arguments: list[str]) -> int:
    """Measures. 0."""
    asked = _parser().parse_args(arguments)
    reader = Reader(TransformerModel(find_folder(None), threads=1))
    print(f"{'':<34} {'hits':>6} {'wrong':>6} {'500':>5} {'1000':>5} {'last':>5}   pairs of answers")
    for name in asked.set:
        rows = read_set(asked.data, name)
        vectors = encode_all(rows.texts, asked.vectors, name, lambda done, of: None)
        for wording, seed in product(asked.wordings, asked.seed):
            _measure(rows, vectors, wording, seed, reader, asked)
    return 0


def _measure(
    rows: LabelledSet, vectors: dict[str, Vector], wording: str, seed: int, reader: Reader, asked: argparse.Namespace
) -> None:
    """Prints a line for our cache, and one for each that it is compared with."""
    order = drifting if asked.stream == "drift" else returning if rows.name == "templates" else shuffled
    questions = order(rows, vectors, seed)
    questions.asked = list(questions.asked)[: asked.questions]
    changes_at = len(questions.asked) // 2 if asked.stream == "change" else None
    book = None if wording == "one" else book_of(asked.tool, sorted(set(questions.meanings)), wording, seed)
    for label, make in {"": _ours(seed, asked.pace), **(_RIVALS if asked.beside else {})}.items():
        upstream = WordedUpstream(questions.meanings, Random(seed), reader, book, changes_at)
        seen = replay(questions, make(questions, upstream), upstream)
        print(
            f"{rows.name:<10} {asked.stream:<7} {wording:<5} seed {seed:<3} {100 * seen.hit_rate:6.1f} "
            f"{100 * seen.wrong_rate:6.2f} {seen.worst_500 / 5:5.1f} {seen.worst_1000 / 10:5.1f} "
            f"{seen.last_hits / 5:5.0f}   {label or _told(upstream)}",
            flush=True,
        )


def _ours(seed: int, pace: float) -> _Make:
    return lambda questions, upstream: Pooled(questions, upstream, Verified(Bound(0.01), Random(seed + 1)), pace=pace)


def _told(upstream: WordedUpstream) -> str:
    told = upstream.told
    same, others = (sum(count for (truth, _), count in told.items() if truth is kind) or 1 for kind in (True, False))
    return (
        f"same {100 * told[True, 'same'] / same:.1f} {100 * told[True, 'different'] / same:.2f}, "
        f"others {100 * told[False, 'same'] / others:.2f}; {1e3 * upstream.cpu_s / max(1, told.total()):.1f} ms, "
        f"{1e3 * upstream.cpu_s / max(1, upstream.num_calls):.1f} a miss"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.semantic.worded_answers", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="where <set>_*.jsonl.gz lie")
    parser.add_argument("--tool", type=Path, required=True, metavar="FOLDER", help="where eval_policy.py lies")
    parser.add_argument("--vectors", type=Path, required=True, metavar="FOLDER", help="keep the texts' vectors there")
    parser.add_argument("--set", action="append", required=True, choices=["banking77", "clinc150", "templates"])
    parser.add_argument("--wordings", action="append", required=True, choices=WORDINGS)
    parser.add_argument("--stream", default="steady", choices=["steady", "change", "drift"])
    parser.add_argument("--questions", type=int, default=5000)
    parser.add_argument(
        "--pace",
        type=float,
        default=math.inf,
        metavar="N",
        help="comparisons that there is time for with each question: 1 as asked without a pause, all by default",
    )
    parser.add_argument("--beside", action="store_true", help="the caches that ours is compared with, too")
    parser.add_argument("--seed", type=int, action="append", required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
