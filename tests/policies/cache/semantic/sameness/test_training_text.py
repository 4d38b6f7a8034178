"""What the heads are trained on: families of pairs, answers put together from facts, and what was written by hand."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest

from policies.cache.semantic.sameness.parts import parts_of, texts_of
from policies.cache.semantic.sameness.training.examples import (
    HELD_SAYINGS,
    KNOWN_SAYINGS,
    TEST_SAYINGS,
    one_of_each,
)
from policies.cache.semantic.sameness.training.facts.kinds import all_kinds
from policies.cache.semantic.sameness.training.facts.written import sayings, wrapping, written_answers
from policies.cache.semantic.sameness.training.generator import Generator
from policies.cache.semantic.sameness.training.pairs import Meanings, family_of
from policies.cache.semantic.sameness.training.passages import passages

EVERYWHERE = range(20)
_FACT = re.compile(r"\b([a-cA-C]) \d")


def test_family_holds_each_text_against_those_whose_verdict_is_known() -> None:
    """Two that differ from the first meaning may well say the same."""
    family = family_of([["a", "b", "c"], ["x", "y"], ["z"]], "made")
    told = {(pair.left, pair.right): pair.is_same for pair in family}

    assert {pair for pair, is_same in told.items() if is_same} == {("a", "b"), ("a", "c"), ("b", "c"), ("x", "y")}
    assert {pair for pair, is_same in told.items() if not is_same} == {(one, n) for one in "abc" for n in "xyz"}


def test_family_counts_as_its_texts_do_and_both_verdicts_alike() -> None:
    """However many pairs there are of each."""
    family = family_of([["a", "b", "c"], ["x"], ["y"], ["z"]], "made")
    weights = Counter[bool]()
    for pair in family:
        weights[pair.is_same] += pair.weight

    assert weights[True] == pytest.approx(weights[False]) == pytest.approx(1.5)


def test_one_pair_of_each_verdict_stands_for_a_family() -> None:
    """Where a family has one: wordings put together by chance may all be equal."""
    families = [family_of([["a", "b", "c"], ["x"]], "made"), family_of([["a", "a"], ["x"]], "made")]
    assert sorted(pair.is_same for pair in one_of_each(1, families)) == [False, False, True]


def test_generator_tells_a_fact_in_words_that_none_of_its_changes_has() -> None:
    """Else a pair of equal texts would be different."""
    generator = Generator(Random(1), all_kinds(), 4, 16)
    for _ in range(300):
        same, *others = generator.fact_and_changes()
        assert len(set(same)) == len(same) >= 1
        assert not {text for other in others for text in other} & set(same)


def test_passages_say_all_facts_or_all_but_one() -> None:
    """Facts are single letters, their opposites capitals."""
    facts: list[Meanings] = [[[f"{letter} {n}" for n in range(3)], [f"{letter.upper()} 9"]] for letter in "abc"]
    random = Random(2)
    for _ in range(100):
        same, *changed = passages(facts, random)
        assert all(sorted(_FACT.findall(said)) == ["a", "b", "c"] for said in same)
        for (said,) in changed:
            letters = _FACT.findall(said)
            assert sorted(letter.lower() for letter in letters) in (["a", "b", "c"], ["a", "b"], ["a", "c"], ["b", "c"])
            assert sum(letter.isupper() for letter in letters) == (1 if len(letters) == 3 else 0)


def test_what_was_written_has_three_of_each_that_can_be_read_and_are_not_equal() -> None:
    """A line that is no such thing would teach nonsense without a word."""
    for meanings in (*sayings(EVERYWHERE), *written_answers(EVERYWHERE)):
        texts = [text for said in meanings for text in said]
        assert [len(said) for said in meanings] == [3, 1, 1, 1], texts
        assert all(parts_of(text) is not None for text in texts), texts
        assert len({text.casefold() for text in texts}) == 6, texts


def test_wrapping_is_a_line_each_that_can_be_read() -> None:
    """And none is also told as something that matters."""
    lines = wrapping()
    assert len(lines) == len(set(lines)) > 1000
    assert all(texts_of(line) for line in lines)
    told = {part for meanings in sayings(EVERYWHERE) for said in meanings for text in said for part in texts_of(text)}
    assert not told & {part for line in lines for part in texts_of(line)}


def test_every_place_of_sayings_is_in_one_split() -> None:
    """None is both trained and tested on."""
    splits = (TEST_SAYINGS, HELD_SAYINGS, KNOWN_SAYINGS)
    assert sorted(place for split in splits for place in split) == list(EVERYWHERE)
    assert sum(len(sayings(split)) for split in splits) == len(sayings(EVERYWHERE))
    assert all(sayings(split) for split in splits)
