"""Who does what to whom: passive sentences as active ones, and what is never taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.voice import active, are_reversed


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


@pytest.mark.parametrize(
    ("passive", "same", "reversed_"),
    [
        ("Norvia is owned by Halden Foods.", "Halden Foods owns Norvia.", "Norvia owns Halden Foods."),
        (
            "The tenant must be informed by the landlord.",
            "The landlord must inform the tenant.",
            "The tenant must inform the landlord.",
        ),
        ("The form is checked by the branch.", "The branch checks the form.", "The form checks the branch."),
        ("The seller will be paid by the buyer.", "The buyer will pay the seller.", "The seller pays the buyer."),
        ("The guest was carried by his host.", "His host carries the guest.", "The guest carries his host."),
    ],
)
def test_who_does_it_there_and_has_it_done_here_is_seen(passive: str, same: str, reversed_: str) -> None:
    """In either order of the two, in any tense."""
    assert are_reversed(passive, reversed_)
    assert are_reversed(reversed_, passive)
    assert not are_reversed(passive, same)
    assert not are_reversed(same, passive)
    assert not are_reversed(passive, passive)
    assert not are_reversed(passive, "Something else is said here.")


_WORDS = (
    "the The a was were is has been will be written bitten approved by By Anna Norvia landlord in on May , . us * 5"
)


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=14).map(" ".join))
def test_any_words_are_told_once_and_none_is_lost(text: str) -> None:
    """What has been turned is not turned again; "was" and "by" go, "written" is "wrote"."""
    told = active(text)
    assert active(told) == told
    assert not are_reversed(text, text)
    assert abs(len(told.split()) - len(text.split())) in (0, 1, 2)


def test_a_long_sentence_is_read_at_once() -> None:
    """No pattern tries all ways to part it."""
    text = "the the " * 3_000 + "was written by the " + "the " * 3_000 + " by "
    assert active(text) == text
    assert not are_reversed(text, text)
