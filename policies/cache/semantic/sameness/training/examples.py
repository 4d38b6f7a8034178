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

CALIBRATION_KINDS = frozenset(
    ("price_of", "faster", "open_day", "must", "sent", "valid_for", "not_all", "located", "fr")
)
TEST_KINDS = frozenset(("monthly", "hired", "allowed", "anytime", "before", "deadline", "quantity", "certain", "it"))
"""Kinds that no training sees: what a head says of the others is surer than what it is worth elsewhere."""


class AnswerPair(NamedTuple):
    """A pair and how much it counts."""

    left: str
    right: str
    is_same: bool
    weight: float
    source: str


class AnswerPairs(NamedTuple):
    """Three sets that share no question of ParaQA and no fact; the last two have kinds of facts of their own."""

    training: list[AnswerPair]
    calibration: list[AnswerPair]
    test: list[AnswerPair]


class _Row(msgspec.Struct, frozen=True):
    a: str
    b: str
    y: int
    kind: str
    bt: int = 0
    read: int = 0


def examples(paraqa: Path | None, seed: int, num_own: int) -> AnswerPairs:
    """`paraqa`: rows of `a`, `b`, `y`, `bt`, `read`, gzipped, of its training part; read rows are never trained on."""
    known = kinds_of_facts() - CALIBRATION_KINDS - TEST_KINDS
    training = own(seed, num_own, known, is_training=True)
    # Half of kinds that training has seen, in other words and about other things, half of kinds that it has not.
    calibration = own(seed + 1, num_own // 8, CALIBRATION_KINDS) + own(seed + 2, num_own // 8, known)
    test = own(seed + 3, num_own // 8, TEST_KINDS) + own(seed + 4, num_own // 8, known)
    if paraqa is not None:
        groups = _paraqa(paraqa)
        training += groups[0]
        calibration += groups[1]
        test += groups[2]
    return AnswerPairs(training, calibration, test)


def own(seed: int, count: int, kinds: frozenset[str], *, is_training: bool = False) -> list[AnswerPair]:
    """Made-up pairs of these kinds of facts; `is_training` says of which contrasts."""
    generator, contrasts = Generator(Random(seed), kinds), Contrasts(Random(seed), is_training=is_training)
    pairs = [generator.pair() for _ in range(count)]
    pairs += [generator.long_pair() for _ in range(count // 12)]
    pairs += [contrasts.pair() for _ in range(count // 6)]
    return [AnswerPair(pair.left, pair.right, pair.is_same, 1.0, pair.recipe) for pair in pairs]


def _paraqa(path: Path) -> tuple[list[AnswerPair], list[AnswerPair], list[AnswerPair]]:
    """By groups of rows that share a text: with a row that was read in the test set, the others by chance."""
    with gzip.open(path, "rb") as file:
        rows = [msgspec.json.decode(line, type=_Row) for line in file]
    find = _components(rows)
    read = {find(row.a) for row in rows if row.read}
    random = Random(0)
    place = {root: random.choices((0, 1), (0.85, 0.15))[0] for root in sorted({find(row.a) for row in rows})}
    sets: tuple[list[AnswerPair], list[AnswerPair], list[AnswerPair]] = ([], [], [])
    for row in rows:
        root = find(row.a)
        # Of what was translated there and back and not read one in three has shifted in meaning.
        weight = 0.5 if row.y and row.bt and not row.read else 1.0
        if root in read:
            if row.read or not row.y:
                sets[2].append(AnswerPair(row.a, row.b, bool(row.y), 1.0, f"paraqa {row.kind}"))
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
