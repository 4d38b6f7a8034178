"""Answers in parts: sentences, items of lists, and what each of them speaks of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.parts import MAX_CHARS, parts_of, texts_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("You need: eggs, milk, flour.", "You need:\n\n- eggs\n- milk\n- flour"),
        ("You need: eggs, milk.", "**You need**\n* eggs\n* milk"),
        ("Open it. Turn left.", "1. Open it.\n2. Turn left."),
        ("Call sorted(x, reverse=True).", "Call `sorted(x, reverse=True)`."),
        ("The fee is 5.50 euros, i.e. low. Pay.", "The fee is €5.50, i.e. low.\n\nPay."),
    ],
)
def test_parts_do_not_depend_on_layout(one: str, other: str) -> None:
    """Lists of things are a sentence, lists of sentences are sentences."""
    assert texts_of(one) == texts_of(other)


@pytest.mark.parametrize("text", ["", " \n", "...", "```\n```", "a" * (MAX_CHARS + 1), "Word. " * 400])
def test_parts_of_what_says_nothing_or_too_much_are_none(text: str) -> None:
    """Nothing is compared by half."""
    assert parts_of(text) is None


@given(st.text(max_size=200))
def test_parts_of_anything_have_words_and_stand_under_what_comes_before(text: str) -> None:
    """Whatever an upstream says."""
    parts = parts_of(text)
    assert parts is None or all(-1 <= place < at for at, place in enumerate(parts.under))
    assert all(any(char.isalnum() or char == "_" for char in part) for part in texts_of(text))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The film is Dr. Strangelove. It is by Stanley Kubrick.", 2),
        ("It was written by J. K. Rowling.", 1),
        ("Ask Mrs. Smith. No. She is away.", 3),
        ("It is open. We close at ten! Why? Nobody knows.", 3),
        ("Who pays? The seller.", 1),
        ("Who pays? So far it has been the seller who does.", 2),
    ],
)
def test_parts_do_not_end_at_a_short_form_or_a_question_that_has_a_short_answer(text: str, count: int) -> None:
    """A title or an initial ends no sentence, and "the seller" says nothing by itself."""
    assert len(texts_of(text)) == count


def test_parts_lose_nothing_of_a_sentence_that_never_ends() -> None:
    """What stands behind its six hundredth character could be all that matters."""
    told = "it goes on and on " * 60
    assert parts_of(f"{told}until Monday") != parts_of(f"{told}until Friday")
    assert "".join(texts_of(f"{told}until Monday")).endswith("until Monday")


@pytest.mark.parametrize(
    ("text", "heads"),
    [
        ("### Gold\nFee: 5 euros\n\n### Silver\nFee: 3 euros", {"Fee: 5 euros": "Gold", "Fee: 3 euros": "Silver"}),
        ("**Monday**\n\nOpen from 9.\nClosed at 5.", {"Open from 9.": "Monday", "Closed at 5.": "Monday"}),
        ("Adults:\n2 pills\n\nChildren:\n1 pill", {"2 pills": "Adults", "1 pill": "Children"}),
        ("Step 1\nTurn it off.\n\nStep 2\nOpen it.", {"Turn it off.": "Step 1", "Open it.": "Step 2"}),
        (
            "- Gold\n  - It costs 5 euros and has no end.\n- Silver\n  - None but the owner may have it.",
            {"It costs 5 euros and has no end.": "Gold", "None but the owner may have it.": "Silver"},
        ),
        ("1. Gold\n   Only the owner may have this one.", {"Only the owner may have this one.": "Gold"}),
        (
            "Gold is big. It costs 5 euros. Silver is small. It costs 3 euros.",
            {"It costs 5 euros.": "Gold is big.", "It costs 3 euros.": "Silver is small."},
        ),
    ],
)
def test_parts_know_what_they_speak_of(text: str, heads: dict[str, str]) -> None:
    """A heading, an item, or the sentence that has a name where others have "it"."""
    parts = parts_of(text)
    assert parts is not None
    under = {told: parts.texts[place] for told, place in zip(*parts, strict=True) if place >= 0}
    assert under == heads


@pytest.mark.parametrize(
    "text",
    [
        "It costs 5 euros. It takes a while. Ask the desk.",
        "Fee: 5 euros\nTime: 3 days\nDesk: Cards",
        "- Open the door.\n- Close the window before you go.",
        "Gold: 5 euros. Silver: 3 euros.",
        "| Gold | 5 |\n| Silver | 3 |\nPick one.",
    ],
)
def test_parts_that_speak_for_themselves_stand_under_nothing(text: str) -> None:
    """Facts in a row say nothing of each other."""
    parts = parts_of(text)
    assert parts is not None
    assert set(parts.under) == {-1}


def test_items_under_an_item_are_one_with_it_where_they_are_short() -> None:
    """As items under a line are; and blank lines between items are layout."""
    nested = "- Gold\n  - 5 euros\n  - no end\n\n- Silver\n  - 3 euros\n\nPick one."
    assert texts_of(nested) == ["Gold: 5 euros, no end.", "Silver: 3 euros.", "Pick one."]
    assert texts_of("You need:\n\n- eggs\n\n- milk") == ["You need: eggs, milk."]


def test_lists_in_lists_end() -> None:
    """However deep they go."""
    assert len(texts_of("\n".join(f"{' ' * depth}- deep {depth}" for depth in range(46)))) <= 46


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ("There are two ways:\n1. by post\n2. in the app", "There are 2 ways: by post or in the app."),
        ("Choose one:\n- a\n- b\n- c", "Choose one: a, b or c."),
        ("Es gibt zwei Möglichkeiten:\n- per Post\n- in der App", "Es gibt 2 Möglichkeiten: per Post oder in der App."),
        ("You need all of these options:\n- a\n- b", "You need all of these options: a, b."),
        ("You need:\n- a\n- b", "You need: a, b."),
    ],
)
def test_things_of_which_one_is_enough_have_an_or_between_them(listed: str, told: str) -> None:
    """As in a sentence, where the lead tells; else nobody knows."""
    assert texts_of(listed) == [told]
