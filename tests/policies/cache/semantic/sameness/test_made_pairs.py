"""Made-up pairs of answers: what is said of a pair is so, whatever has been drawn."""

from __future__ import annotations

from operator import ne
from random import Random

import pytest

from policies.cache.semantic.sameness.training.contrasts import Contrasts
from policies.cache.semantic.sameness.training.facts.kinds import words_of_slots
from policies.cache.semantic.sameness.training.invented import InventedWords
from policies.cache.semantic.sameness.training.structures import Structures


def test_lists_are_the_same_where_they_list_the_same_and_want_as_much_of_it() -> None:
    """In any order and layout; one thing missing, another one, or any of them for all of them is something else."""
    words = words_of_slots()
    structures = Structures(Random(1), words)

    def told(text: str) -> tuple[frozenset[str], bool]:
        items = frozenset(item for item in words["item"] if item in text)
        return items, any(lead in text for lead in words["any_lead"])

    pairs = [structures.listed() for _ in range(2_000)]

    assert all(pair.is_same is (told(pair.left) == told(pair.right)) for pair in pairs)
    assert all(told(pair.left)[0] for pair in pairs)
    assert {pair.recipe for pair in pairs} == {f"list, {way}" for way in ("same", "other", "missing", "any for all")}


@pytest.mark.parametrize("is_training", [True, False])
def test_contrasts_that_differ_never_read_alike(is_training: bool) -> None:
    """Equal seeds make equal ones."""
    makers = [Contrasts(Random(2), is_training=is_training) for _ in range(2)]
    pairs, again = ([maker.pair() for _ in range(3_000)] for maker in makers)

    assert pairs == again
    assert all(pair.left != pair.right for pair in pairs if not pair.is_same)
    assert 0.3 < sum(pair.is_same for pair in pairs) / len(pairs) < 0.7


def test_invented_sentences_have_one_word_changed_or_all() -> None:
    """Both often, and of words and numbers alone."""
    invents = InventedWords(Random(3))
    num_alike = 0
    for _ in range(500):
        words = invents.sentence()
        other = invents.other_in(words)
        assert all(word.isalpha() or word.isdigit() for word in (*words, *other))
        num_alike += len(words) == len(other) and sum(map(ne, words, other)) == 1
    assert 0.25 < num_alike / 500 < 0.55
