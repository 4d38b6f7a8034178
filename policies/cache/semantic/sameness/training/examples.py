"""What the heads are trained, calibrated and tested on: made-up pairs by kinds of facts, sayings and answers written as
a whole, and ParaQA by its questions.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from policies.cache.semantic.sameness.training.contrasts import Contrasts
from policies.cache.semantic.sameness.training.facts.kinds import all_kinds, kinds_in_english
from policies.cache.semantic.sameness.training.facts.written import sayings, twentieth, written_answers
from policies.cache.semantic.sameness.training.generator import Generator
from policies.cache.semantic.sameness.training.pairs import AnswerPair, Family, MadePair, family_of
from policies.cache.semantic.sameness.training.passages import passages

EVALUATED_KINDS = frozenset(("duration", "duration_bare", "price", "menu", "responsible", "permission"))
"""Told as the answers of `tests.benchmarks.semantic.same_answers --tool` tell them: no training sees these, or they
would flatter. The same subjects are trained on in other words, written without knowing those answers.
"""


TEST_KINDS = EVALUATED_KINDS | frozenset(("it", *(kind for kind in kinds_in_english() if twentieth(kind) < 2)))
"""Kinds that no training sees: what a head says of the others is surer than what it is worth elsewhere."""
HELD_KINDS = frozenset(("fr", *(kind for kind in kinds_in_english() if twentieth(kind) < 5))) - TEST_KINDS
"""Kinds of facts of which no sentence is trained on: what sentences are worth in answers is learned from these too."""
_KNOWN_KINDS = all_kinds() - HELD_KINDS - TEST_KINDS
TEST_SAYINGS, HELD_SAYINGS, KNOWN_SAYINGS = range(2), range(2, 5), range(5, 20)
"""By `twentieth`: likewise."""
_TEST_ANSWERS, _CALIBRATION_ANSWERS = range(3), range(3, 6)
_HELD_ANSWERS, _KNOWN_ANSWERS = range(6, 11), range(11, 20)
_FACTS_A_KIND = 40
_SAYINGS_A_FACT = 16
_FACTS_OF_ANSWERS = 6
"""Of each kind; whole answers share their sentences, each of which has to be encoded."""
_FACTS_A_PASSAGE = (2, 2, 3, 3, 4)


class AnswerPairs(NamedTuple):
    """Four sets that share no question of ParaQA and no fact. `sentences` are of known kinds, a family each, and some
    answers of several, which the head over tokens reads at once; the others are answers of several sentences, half of
    known kinds, half of those that sentences or nothing else knows.
    """

    sentences: list[Family]
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


def examples(paraqa: Path | None, seed: int, num_families: int, num_answers: int) -> AnswerPairs:
    """`paraqa`: rows of `a`, `b`, `y`, `bt`, `read`, gzipped, of its training part; read rows are never trained on."""
    sets = AnswerPairs(
        families_of(seed, num_families),
        own(seed + 1, num_answers, HELD_KINDS) + own(seed + 2, num_answers, _KNOWN_KINDS),
        own(seed + 3, num_answers // 2, HELD_KINDS) + own(seed + 4, num_answers // 2, _KNOWN_KINDS),
        own(seed + 5, num_answers // 2, TEST_KINDS) + own(seed + 6, num_answers // 2, _KNOWN_KINDS),
    )
    count = num_answers // 20
    sets.answers.extend(pair for family in written(seed + 7, count, HELD_SAYINGS, _HELD_ANSWERS) for pair in family)
    # Pairs of one family are not told independently: they would outvote all others.
    sets.calibration.extend(one_of_each(seed, written(seed + 8, count, HELD_SAYINGS, _CALIBRATION_ANSWERS)))
    sets.test.extend(one_of_each(seed, written(seed + 9, count, TEST_SAYINGS, _TEST_ANSWERS)))
    if paraqa is not None:
        of_paraqa = _paraqa(paraqa)
        sets.sentences.extend(of_paraqa.sentences)
        for pairs, others in zip(sets[1:], of_paraqa[1:], strict=True):
            pairs.extend(others)
    return sets


def families_of(seed: int, count: int) -> list[Family]:
    """Made-up and written ones that sentences are trained on."""
    random = Random(seed)
    generator = Generator(random, _KNOWN_KINDS, _FACTS_A_KIND, _SAYINGS_A_FACT)
    contrasts = Contrasts(random, is_training=True)
    said, answers = sayings(KNOWN_SAYINGS), written_answers(_KNOWN_ANSWERS)

    def of_facts() -> Family:
        return family_of(generator.fact_and_changes(), "facts")

    def of_saying() -> Family:
        return family_of(random.choice(said), "saying")

    def of_several_facts() -> Family:
        facts = [generator.fact_and_changes() for _ in range(random.choice(_FACTS_A_PASSAGE))]
        return family_of(passages(facts, random), "facts together")

    def of_several_sayings() -> Family:
        return family_of(passages(random.sample(said, random.choice(_FACTS_A_PASSAGE)), random), "sayings together")

    def of_answer() -> Family:
        return family_of(random.choice(answers), "answer")

    def of_form() -> Family:
        return [_of_pair(generator.of_form())]

    def of_contrast() -> Family:
        return [_of_pair(contrasts.pair())]

    makers = (
        (of_facts, 36),
        (of_saying, 22),
        (of_several_facts, 7),
        (of_several_sayings, 7),
        (of_answer, 4),
        (of_form, 14),
        (of_contrast, 10),
    )
    chosen = random.choices([make for make, _ in makers], [weight for _, weight in makers], k=count)
    return [make() for make in chosen]


def written(seed: int, count: int, of_sayings: range, of_answers: range) -> list[Family]:
    """So many families of sayings put together as answers, and all that were written as answers."""
    random = Random(seed)
    said = sayings(of_sayings)
    made = [passages(random.sample(said, random.choice(_FACTS_A_PASSAGE)), random) for _ in range(count)]
    return [family_of(meanings, "written") for meanings in (*made, *written_answers(of_answers))]


def one_of_each(seed: int, families: Sequence[Family]) -> list[AnswerPair]:
    """Of each family a pair that says the same, if there is one, and one that does not."""
    random = Random(seed)
    told = [[pair for pair in family if pair.is_same is is_same] for family in families for is_same in (True, False)]
    return [random.choice(pairs) for pairs in told if pairs]


def _of_pair(pair: MadePair) -> AnswerPair:
    return AnswerPair(pair.left, pair.right, pair.is_same, 1.0, pair.recipe)


def own(seed: int, count: int, kinds: frozenset[str]) -> list[AnswerPair]:
    """Made-up pairs of answers of these kinds of facts."""
    generator, contrasts = Generator(Random(seed), kinds, _FACTS_OF_ANSWERS), Contrasts(Random(seed), is_training=False)
    pairs = [generator.pair() for _ in range(count)]
    pairs += [generator.long_pair() for _ in range(count // 12)]
    pairs += [contrasts.pair() for _ in range(count // 6)]
    return [_of_pair(pair) for pair in pairs]


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
    families: dict[str, Family] = {}
    held = {1: sets.answers, 2: sets.calibration}
    for row in unseen(rows):
        sets.test.append(AnswerPair(row.a, row.b, bool(row.y), 1.0, f"paraqa {row.kind}"))
    for row in rows:
        root = find(row.a)
        # Of what was translated there and back and not read one in three has shifted in meaning.
        weight = 0.5 if row.y and row.bt and not row.read else 1.0
        if root not in read and (weight == 1.0 or place[root] == 0):
            into = held[place[root]] if place[root] in held else families.setdefault(root, [])
            into.append(AnswerPair(row.a, row.b, bool(row.y), weight, f"paraqa {row.kind}"))
    sets.sentences.extend(families.values())
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
