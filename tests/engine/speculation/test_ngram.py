"""Prompt lookup against a search that looks everywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backends.engine.speculation.ngram import LONGEST_MATCH, SHORTEST_MATCH, PairIndex, continuation

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def longest_match(text: list[int], suffix: list[int]) -> int:
    """Length of the longest end of `suffix` that occurs in `text` with something behind it."""
    best = 0
    for position in range(1, len(text)):
        length = 0
        while length < min(position, len(suffix), LONGEST_MATCH) and text[position - length - 1] == suffix[-length - 1]:
            length += 1
        best = max(best, length)
    return best if best >= SHORTEST_MATCH else 0


@given(TEXTS)
def test_find_in_a_text_of_its_own_finds_a_true_match(text: list[int]) -> None:
    """What it finds is there, and nothing is found where nothing is."""
    index = PairIndex()
    index.extend(text)

    match = index.find(text, text)

    expected = longest_match(text, text)
    assert (match is None) == (expected == 0)
    if match is not None:
        assert SHORTEST_MATCH <= match.length <= expected
        assert match.position < len(text)
        assert text[match.position - match.length : match.position] == text[-match.length :]


@given(st.lists(st.integers(0, 50), max_size=60), st.lists(st.integers(0, 50), max_size=8))
def test_find_with_few_candidates_finds_the_longest(text: list[int], suffix: list[int]) -> None:
    """Where the last two tokens are rare, every occurrence is looked at."""
    index = PairIndex()
    index.extend(text)

    match = index.find(text, suffix)

    assert (0 if match is None else match.length) == longest_match(text, suffix)


@given(TEXTS, st.integers(1, 7))
def test_extend_piece_by_piece_is_the_same_as_at_once(text: list[int], piece: int) -> None:
    """The index grows with the text."""
    whole, grown = PairIndex(), PairIndex()
    whole.extend(text)
    for end in range(0, len(text) + piece, piece):
        grown.extend(text[:end])

    assert grown.find(text, text) == whole.find(text, text)


def test_find_among_equal_matches_takes_the_latest() -> None:
    """What was said last is what will most likely be said again."""
    text = [1, 2, 7, 1, 2, 8, 1, 2]
    index = PairIndex()
    index.extend(text)

    match = index.find(text, text)

    assert match is not None
    assert continuation(text, match.position, 2) == [8, 1]


def test_find_with_a_longer_match_further_back_takes_the_longer() -> None:
    """A longer context says more than a later one."""
    text = [5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2]
    index = PairIndex()
    index.extend(text)

    match = index.find(text, text)

    assert match is not None
    assert (match.position, match.length) == (3, 3)


def test_continuation_past_the_end_repeats_the_period() -> None:
    """A text that has begun to repeat itself goes on doing so."""
    assert continuation([9, 1, 2, 3, 1, 2, 3], 4, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_find_in_a_text_of_one_token_repeated_compares_few_candidates() -> None:
    """A million equal tokens are searched in no time, since the first long match ends the search."""
    text = [7] * 100_000
    index = PairIndex()
    index.extend(text)

    match = index.find(text, text)

    assert match is not None
    assert match.length == LONGEST_MATCH
