"""Sentences that differ in one word: its opposite in the other, and any other one."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.clauses import opposites
from policies.cache.semantic.sameness.clauses.opposites import have_one_of_two


def are_opposite(one: str, other: str) -> bool:
    """In both orders of the two alike."""
    told = opposites.are_opposite(one, other)
    assert told == opposites.are_opposite(other, one)
    return told


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Reads are cached.", "Writes are cached."),
        ("The sender pays shipping.", "Shipping is paid by the recipient."),
        ("Online orders are free.", "Orders in store are free."),
        ("Either parent must sign.", "Both parents have to sign."),
        ("All orders are late.", "Some orders are late."),
        ("It is always open.", "It is rarely open."),
        ("We may refund you.", "We will refund you."),
        ("You must pay it.", "You may pay it."),
        ("You will be charged after delivery.", "You are charged before delivery."),
        ("Paid leave is possible.", "Unpaid leave is possible."),
        ("Direct debits are free.", "Indirect debits are free."),
        ("Press Ctrl+S.", "Press Ctrl+Q."),
        ("Vor der Lieferung zahlen.", "Nach der Lieferung zahlen."),
        ("Die Tür öffnet um neun.", "Die Tür schließt um neun."),
        ("Le vendeur paie les frais.", "L'acheteur paie les frais."),
        ("El comprador paga los gastos.", "El vendedor paga los gastos."),
        ("Il venditore paga le spese.", "L'acquirente paga le spese."),
    ],
)
def test_the_opposite_in_the_place_of_a_word_is_seen(left: str, right: str) -> None:
    """Whatever auxiliaries stand beside it, in five languages."""
    assert are_opposite(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("A bus is larger than a car.", "A car is smaller than a bus."),
        ("Gold is above silver.", "Silver is below gold."),
        ("You buy it from us.", "We sell it to you."),
        ("I lent him the money.", "He borrowed the money from me."),
        ("The card is not valid before May.", "The card is valid after May."),
        ("It opens early, not late.", "It opens late, not early."),
        ("Always ask first.", "Ask first."),
        ("It ends soon.", "It stops soon."),
        ("All guests pay.", "Every guest pays."),
        ("You may leave.", "You can leave."),
        ("You might leave.", "You may leave."),
        ("Yes.", "No."),
        ("Before.", "After."),
        ("may", "will"),
        ("", ""),
    ],
)
def test_turned_round_denied_or_unlike_in_more_it_is_left_to_whoever_reads_it(left: str, right: str) -> None:
    """And one word alone is no sentence."""
    assert not are_opposite(left, right)


def test_of_two_words_the_one_that_is_not_shared_decides_nothing() -> None:
    """A doctor is near a lawyer, and so is opening to launching; of three words two tell more."""
    assert have_one_of_two("A doctor must sign.", "A lawyer must sign.")
    assert have_one_of_two("La banque paie.", "L'assurance paie.")
    assert not have_one_of_two("A doctor must sign.", "A doctor has to sign.")
    assert not have_one_of_two("A doctor signs here.", "A lawyer signs here.")
    assert not have_one_of_two("Thanks.", "Thank you.")


_WORDS = "the all some before after is not I you we by may will read write bus larger smaller A B 5 . ,"


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=8))
def test_no_order_of_the_same_words_is_an_opposite(words: list[str]) -> None:
    """Nor what is said twice."""
    told = " ".join(words)
    assert not are_opposite(told, told)
    assert not are_opposite(told, " ".join(sorted(words)))
    assert not have_one_of_two(told, " ".join(sorted(words)))


@given(st.text(), st.text())
def test_any_text_is_read(one: str, other: str) -> None:
    """In both orders alike."""
    are_opposite(one, other)
    assert have_one_of_two(one, other) == have_one_of_two(other, one)


@pytest.mark.parametrize("text", ["read " * 1_000, "un" * 2_400, "a" * 4_800, "disin" * 900 + "x"])
def test_a_long_sentence_is_read_at_once(text: str) -> None:
    """Hostile ones too."""
    began = process_time()
    are_opposite(text, text[2:])
    assert process_time() - began < 1
