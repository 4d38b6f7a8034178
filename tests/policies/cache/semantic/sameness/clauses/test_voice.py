"""Passive sentences as active ones, and what is never taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.clauses.voice import active


@pytest.mark.parametrize(
    ("passive", "told"),
    [
        ("The dog was bitten by the postman.", "The postman bit the dog."),
        ("Tomas Brandt was hired by Anna Keller in May.", "Anna Keller hired Tomas Brandt in May."),
        ("Hamlet was written by Shakespeare", "Shakespeare wrote Hamlet"),
        ("They were warned by us.", "We warned them."),
        ("Your card has been blocked by the bank.", "The bank has blocked your card."),
        ("Both cards have been blocked by the bank.", "The bank has blocked both cards."),
        ("Both cards had been blocked by our agents.", "Our agents had blocked both cards."),
        (
            "The plan was quickly approved by the town council after the vote.",
            "The town council quickly approved the plan after the vote.",
        ),
    ],
)
def test_what_was_done_is_told_by_who_did_it(passive: str, told: str) -> None:
    """Word by word as the active sentence has it."""
    assert active(passive) == told


@pytest.mark.parametrize(
    "sentence",
    [
        "The form was delivered by Friday.",
        "The price was reduced by a third.",
        "It was done by the end of the week.",
        "It was paid by card.",
        "It was not approved by the council.",
        "The house that was built by the firm collapsed.",
        "The house was built by the firm, which later collapsed.",
        "In May, it was sold by Norvia.",
        "The tenant must be informed by the landlord.",
        "Norvia is owned by Halden Foods.",
        "by by by",
        "",
    ],
)
def test_all_else_stays_as_it_is(sentence: str) -> None:
    """Dates, amounts, means, clauses; and what is done or has to be, for its active form is not known."""
    assert active(sentence) == sentence


_WORDS = (
    "the The a was were is has been will be written bitten approved by By Anna Norvia landlord in on May , . us * 5"
)


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=14).map(" ".join))
def test_any_words_are_told_once_and_none_is_lost(text: str) -> None:
    """What has been turned is not turned again; "was" and "by" go, "written" is "wrote"."""
    told = active(text)
    assert active(told) == told
    assert abs(len(told.split()) - len(text.split())) in (0, 1, 2)


def test_a_long_sentence_is_read_at_once() -> None:
    """No pattern tries all ways to part it."""
    text = "the the " * 3_000 + "was written by the " + "the " * 3_000 + " by "
    assert active(text) == text
