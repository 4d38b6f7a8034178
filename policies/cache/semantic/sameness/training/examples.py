"""What the heads are trained, calibrated and tested on: own pairs by kinds of facts, and ParaQA by its questions."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from policies.cache.semantic.sameness.training.contrasts import Contrasts
from policies.cache.semantic.sameness.training.facts.kinds import all_kinds, kinds_in_english
from policies.cache.semantic.sameness.training.generator import Generator

EVALUATED_KINDS = frozenset(("duration", "duration_bare", "price", "menu", "responsible", "permission"))
"""Told as the answers of `tests.benchmarks.semantic.same_answers --tool` tell them: no training sees these, or they
would flatter. The same subjects are trained on in other words, written without knowing those answers.
"""


def _twentieth(kind: str) -> int:
    """Of all kinds, each in the same one for good."""
    return zlib.crc32(kind.encode()) % 20


TEST_KINDS = EVALUATED_KINDS | frozenset(("it", *(kind for kind in kinds_in_english() if _twentieth(kind) < 2)))
"""Kinds that no training sees: what a head says of the others is surer than what it is worth elsewhere."""
HELD_KINDS = frozenset(("fr", *(kind for kind in kinds_in_english() if _twentieth(kind) < 5))) - TEST_KINDS
"""Kinds of facts of which no sentence is trained on: what sentences are worth in answers is learned from these too."""
_FACTS_A_KIND = 40
_SAYINGS_A_FACT = 16
_FACTS_OF_ANSWERS = 6
"""Of each kind; whole answers share their sentences, each of which has to be encoded."""
_PARAQA_TIMES = 3
"""So often each of its pairs is among the sentences, of which there are many more."""


class AnswerPair(NamedTuple):
    """A pair and how much it counts."""

    left: str
    right: str
    is_same: bool
    weight: float
    source: str


class AnswerPairs(NamedTuple):
    """Four sets that share no question of ParaQA and no fact. `sentences` are of known kinds; the others are answers of
    several sentences, half of known kinds, half of those that sentences or nothing else knows.
    """

    sentences: list[AnswerPair]
    answers: list[AnswerPair]
    calibration: list[AnswerPair]
    test: list[AnswerPair]


class ParaqaRow(msgspec.Struct, frozen=True):
    """A pair: `y` is 1 where it says the same, `bt` where one was made by translating there and back, `read` where
    somebody has read it.
    """

    a: str
    b: str
    y: int
    kind: str
    bt: int = 0
    read: int = 0


def examples(paraqa: Path | None, seed: int, num_sentences: int) -> AnswerPairs:
    """`paraqa`: rows of `a`, `b`, `y`, `bt`, `read`, gzipped, of its training part; read rows are never trained on."""
    known = all_kinds() - HELD_KINDS - TEST_KINDS
    half = num_sentences // 16
    sets = AnswerPairs(
        sentences_of(seed, num_sentences, known),
        own(seed + 1, half, HELD_KINDS) + own(seed + 2, half, known),
        own(seed + 3, half // 2, HELD_KINDS) + own(seed + 4, half // 2, known),
        own(seed + 5, half // 2, TEST_KINDS) + own(seed + 6, half // 2, known),
    )
    if paraqa is not None:
        of_paraqa = _paraqa(paraqa)
        for own_pairs, others in zip(sets, of_paraqa, strict=True):
            own_pairs.extend(others * _PARAQA_TIMES if others is of_paraqa.sentences else others)
    return sets


def sentences_of(seed: int, count: int, kinds: frozenset[str]) -> list[AnswerPair]:
    """Made-up pairs of two sentences."""
    generator = Generator(Random(seed), kinds, _FACTS_A_KIND, _SAYINGS_A_FACT)
    contrasts = Contrasts(Random(seed), is_training=True)
    pairs = [generator.sentences() for _ in range(count)] + [contrasts.pair() for _ in range(count // 8)]
    return [AnswerPair(pair.left, pair.right, pair.is_same, 1.0, pair.recipe) for pair in pairs]


def own(seed: int, count: int, kinds: frozenset[str]) -> list[AnswerPair]:
    """Made-up pairs of answers of these kinds of facts."""
    generator, contrasts = Generator(Random(seed), kinds, _FACTS_OF_ANSWERS), Contrasts(Random(seed), is_training=False)
    pairs = [generator.pair() for _ in range(count)]
    pairs += [generator.long_pair() for _ in range(count // 12)]
    pairs += [contrasts.pair() for _ in range(count // 6)]
    return [AnswerPair(pair.left, pair.right, pair.is_same, 1.0, pair.recipe) for pair in pairs]


def paraqa_rows(path: Path) -> list[ParaqaRow]:
    """Of a gzipped file."""
    with gzip.open(path, "rb") as file:
        return [msgspec.json.decode(line, type=ParaqaRow) for line in file]


def unseen(rows: Sequence[ParaqaRow]) -> list[ParaqaRow]:
    """Those that no training sees: what was read, and all that differ and share texts with it."""
    find = _components(rows)
    read = {find(row.a) for row in rows if row.read}
    return [row for row in rows if find(row.a) in read and (row.read or not row.y)]


def _paraqa(path: Path) -> AnswerPairs:
    """By groups of rows that share a text: with a row that was read in the test set, the others by chance."""
    rows = paraqa_rows(path)
    find = _components(rows)
    read = {find(row.a) for row in rows if row.read}
    random = Random(0)
    place = {root: random.choices((0, 1, 2), (0.7, 0.15, 0.15))[0] for root in sorted({find(row.a) for row in rows})}
    sets = AnswerPairs([], [], [], [])
    for row in unseen(rows):
        sets.test.append(AnswerPair(row.a, row.b, bool(row.y), 1.0, f"paraqa {row.kind}"))
    for row in rows:
        root = find(row.a)
        # Of what was translated there and back and not read one in three has shifted in meaning.
        weight = 0.5 if row.y and row.bt and not row.read else 1.0
        if root not in read and (weight == 1.0 or place[root] == 0):
            sets[place[root]].append(AnswerPair(row.a, row.b, bool(row.y), weight, f"paraqa {row.kind}"))
    return sets


def _components(rows: Sequence[ParaqaRow]) -> Callable[[str], str]:
    parent: dict[str, str] = {}

    def find(text: str) -> str:
        parent.setdefault(text, text)
        while parent[text] != text:
            parent[text] = parent[parent[text]]
            text = parent[text]
        return text

    for row in rows:
        parent[find(row.a)] = find(row.b)
    return find
