"""What the heads are trained, calibrated and tested on: own pairs by kinds of facts, and ParaQA by its questions."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from policies.cache.semantic.sameness.training.contrasts import Contrasts
from policies.cache.semantic.sameness.training.generator import Generator, kinds_of_facts

HELD_KINDS = frozenset(
    (
        "price_of", "faster", "open_day", "must", "sent", "valid_for", "not_all", "located", "undo", "online", "needed",
        "works_with", "default_on", "changeable", "lent", "before_event", "start_time", "refundable", "fr",
    )
)  # fmt: skip
"""Kinds of facts of which no sentence is trained on: what sentences are worth in answers is learned from these too."""
TEST_KINDS = frozenset(
    (
        "monthly", "hired", "allowed", "anytime", "before", "deadline", "quantity", "certain", "who_pays", "arrives",
        "free_of_charge", "it",
    )
)  # fmt: skip
"""Kinds that no training sees: what a head says of the others is surer than what it is worth elsewhere."""
_FACTS_A_KIND = 10
"""For sentences: of answers there are fewer, and they share their sentences."""


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


class _Row(msgspec.Struct, frozen=True):
    a: str
    b: str
    y: int
    kind: str
    bt: int = 0
    read: int = 0


def examples(paraqa: Path | None, seed: int, num_sentences: int) -> AnswerPairs:
    """`paraqa`: rows of `a`, `b`, `y`, `bt`, `read`, gzipped, of its training part; read rows are never trained on."""
    known = kinds_of_facts() - HELD_KINDS - TEST_KINDS
    half = num_sentences // 20
    sets = AnswerPairs(
        sentences_of(seed, num_sentences, known),
        own(seed + 1, half, HELD_KINDS) + own(seed + 2, half, known),
        own(seed + 3, half // 2, HELD_KINDS) + own(seed + 4, half // 2, known),
        own(seed + 5, half // 2, TEST_KINDS) + own(seed + 6, half // 2, known),
    )
    if paraqa is not None:
        for own_pairs, others in zip(sets, _paraqa(paraqa), strict=True):
            own_pairs.extend(others)
    return sets


def sentences_of(seed: int, count: int, kinds: frozenset[str]) -> list[AnswerPair]:
    """Made-up pairs of two sentences."""
    generator = Generator(Random(seed), kinds, _FACTS_A_KIND)
    contrasts = Contrasts(Random(seed), is_training=True)
    pairs = [generator.sentences() for _ in range(count)] + [contrasts.pair() for _ in range(count // 8)]
    return [AnswerPair(pair.left, pair.right, pair.is_same, 1.0, pair.recipe) for pair in pairs]


def own(seed: int, count: int, kinds: frozenset[str]) -> list[AnswerPair]:
    """Made-up pairs of answers of these kinds of facts."""
    generator, contrasts = Generator(Random(seed), kinds), Contrasts(Random(seed), is_training=False)
    pairs = [generator.pair() for _ in range(count)]
    pairs += [generator.long_pair() for _ in range(count // 12)]
    pairs += [contrasts.pair() for _ in range(count // 6)]
    return [AnswerPair(pair.left, pair.right, pair.is_same, 1.0, pair.recipe) for pair in pairs]


def _paraqa(path: Path) -> AnswerPairs:
    """By groups of rows that share a text: with a row that was read in the test set, the others by chance."""
    with gzip.open(path, "rb") as file:
        rows = [msgspec.json.decode(line, type=_Row) for line in file]
    find = _components(rows)
    read = {find(row.a) for row in rows if row.read}
    random = Random(0)
    place = {root: random.choices((0, 1, 2), (0.7, 0.15, 0.15))[0] for root in sorted({find(row.a) for row in rows})}
    sets = AnswerPairs([], [], [], [])
    for row in rows:
        root = find(row.a)
        # Of what was translated there and back and not read one in three has shifted in meaning.
        weight = 0.5 if row.y and row.bt and not row.read else 1.0
        if root in read:
            if row.read or not row.y:
                sets.test.append(AnswerPair(row.a, row.b, bool(row.y), 1.0, f"paraqa {row.kind}"))
        elif weight == 1.0 or place[root] == 0:
            sets[place[root]].append(AnswerPair(row.a, row.b, bool(row.y), weight, f"paraqa {row.kind}"))
    return sets


def _components(rows: Sequence[_Row]) -> Callable[[str], str]:
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
