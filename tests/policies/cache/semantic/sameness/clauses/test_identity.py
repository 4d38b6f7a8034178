"""Sentences that say what is what, turned round."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.clauses.identity import say_what_is_what


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Tulip is the mascot of the club.", "The mascot of the club is Tulip."),
        (
            "Chess, Tennis and Ultimate (sport) are the sports of Bataan.",
            "The sports of Bataan are Chess, Tennis and Ultimate (sport)",
        ),
        ("Our branch in Leeds is the nearest one.", "The nearest one is our branch in Leeds."),
        ("Dr. Smith and J.R. Ewing were the founders!", "The founders were Dr. Smith and J.R. Ewing."),
    ],
)
def test_a_description_may_stand_in_front_or_behind(left: str, right: str) -> None:
    """Word by word the same."""
    assert say_what_is_what(left, right)
    assert say_what_is_what(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Alice is the boss of Bob.", "The boss of Alice is Bob."),
        ("Alice is the boss of Bob.", "Bob is the boss of Alice."),
        ("Tulip is the mascot.", "The mascot was Tulip."),
        ("Tulip is not the mascot.", "The mascot is Tulip."),
        ("Monday is the day when we close.", "The day when we close is Monday."),
        ("A visa is the same as a card.", "The same as a card is a visa."),
        ("Polish", "polish"),
        ("", ""),
    ],
)
def test_all_else_is_left_to_whoever_reads_it(left: str, right: str) -> None:
    """Another one, another time, more than one clause; and texts that nobody turned."""
    assert not say_what_is_what(left, right)


_WORDS = "the is are Tulip mascot of not that , . x ( )"


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=14).map(" ".join))
def test_no_words_are_turned_into_themselves(text: str) -> None:
    """Nor lost: what is turned has the words that it had."""
    turned = " ".join(reversed(text.split()))
    if say_what_is_what(text, turned):
        assert sorted(text.casefold().rstrip(".!").split()) == sorted(turned.casefold().rstrip(".!").split())


@pytest.mark.parametrize(
    "text",
    [
        "x is the " * 500,
        "x is the" + " y" * 2_400,
        "is the " * 700,
        "a" * 4_800 + " is the y",
        "xx " * 20 + "y" * 4_000,
    ],
)
def test_a_long_sentence_is_read_at_once(text: str) -> None:
    """No pattern tries all ways to part it."""
    began = process_time()
    say_what_is_what(text, text[1:])
    assert process_time() - began < 1
