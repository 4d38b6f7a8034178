"""One form for what can be written in several ways, and answers in parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.canonical import canonical
from policies.cache.semantic.sameness.parts import MAX_CHARS, parts_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It starts at quarter to six in the evening.", "It starts at 17:45."),
        ("It starts at half past nine in the morning.", "It starts at 9:30 a.m."),
        ("Doors close at 5 pm.", "Doors close at 17:00."),
        ("It costs €12.50.", "It costs twelve euros and fifty cents."),
        ("It costs EUR 12.50.", "It costs 12.5 euros."),
        ("Pay $3.00 now.", "Pay 3 dollars now."),
        ("It is due on March 3rd, 2026.", "It is due on the 3rd of March 2026."),
        ("It is due on 2026-03-03.", "It is due on 3 March 2026."),
        ("Wait half an hour.", "Wait thirty minutes."),
        ("It weighs 3 kg.", "It weighs three kilograms."),
        ("About two million people came.", "About 2 million people came."),
        ("It has 1.5 billion cells.", "It has 1,500,000,000 cells."),
        ("A share of 7%.", "A share of seven per cent."),
        ("You can't enter, it isn't open.", "You cannot enter, it is not open."),
        ("Die Lieferung dauert fünf Tage.", "Die Lieferung dauert 5 Tage."),
        ("Comptez trente-deux jours pour la livraison.", "Comptez 32 jours pour la livraison."),
        ("El envío tarda veintidós días.", "El envío tarda 22 días."),
        ("La consegna è in quindici giorni.", "La consegna è in 15 giorni."),
    ],
)
def test_canonical_writes_the_same_in_one_way(one: str, other: str) -> None:
    """Numbers, money, times of day, dates, units, "not"."""
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It is open from 9 to 17.", "It is open at 16:51."),
        ("It costs 5 euros.", "It costs 5 dollars."),
        ("It takes 30 seconds.", "It takes 30 minutes."),
        ("It is due on 3 April.", "It is due on 4 March."),
        ("Doors close at 5 am.", "Doors close at 5 pm."),
        ("Once a year.", "Eleven a year."),
    ],
)
def test_canonical_keeps_apart_what_differs(one: str, other: str) -> None:
    """Nothing is lost on the way."""
    assert canonical(one) != canonical(other)


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
    assert parts_of(one) == parts_of(other)


@pytest.mark.parametrize("text", ["", " \n", "...", "```\n```", "a" * (MAX_CHARS + 1), "Word. " * 400])
def test_parts_of_what_says_nothing_or_too_much_are_none(text: str) -> None:
    """Nothing is compared by half."""
    assert parts_of(text) is None


@given(st.text(max_size=200))
def test_parts_of_anything_have_words(text: str) -> None:
    """Whatever an upstream says."""
    assert all(any(char.isalnum() or char == "_" for char in part) for part in parts_of(text) or ())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The film is Dr. Strangelove. It is by Stanley Kubrick.", 2),
        ("It was written by J. K. Rowling.", 1),
        ("Ask Mrs. Smith. No. She is away.", 3),
        ("It is open. We close at ten! Why? Nobody knows.", 4),
    ],
)
def test_parts_do_not_end_at_a_short_form(text: str, count: int) -> None:
    """A title or an initial ends no sentence."""
    parts = parts_of(text)
    assert parts is not None
    assert len(parts) == count


def test_parts_lose_nothing_of_a_sentence_that_never_ends() -> None:
    """What stands behind its six hundredth character could be all that matters."""
    told = "it goes on and on " * 60
    assert parts_of(f"{told}until Monday") != parts_of(f"{told}until Friday")
    assert "".join(parts_of(f"{told}until Monday") or ()).endswith("until Monday")
