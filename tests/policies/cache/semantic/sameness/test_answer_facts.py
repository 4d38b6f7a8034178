"""What is read off answers: numbers in any form, negation in several languages, names, and who is what to whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.answer_facts import facts_of, is_reordered, sentences_of
from policies.cache.semantic.sameness.number_words import in_digits, numbers_of

_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_ONES = f"{_SMALL} seventeen eighteen nineteen".split()


def in_words(number: int) -> str:
    """A number below a million, as people write it."""
    if number >= 1000:
        rest = f" {in_words(number % 1000)}" if number % 1000 else ""
        return f"{in_words(number // 1000)} thousand{rest}"
    if number >= 100:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{_ONES[number // 100]} hundred{rest}"
    if number < 20:
        return _ONES[number]
    return _TENS[number // 10 - 2] + (f"-{_ONES[number % 10]}" if number % 10 else "")


def agree(left: str, right: str) -> bool:
    """Whether nothing differs. A name may stand in the other text without its capital, but not be missing."""
    one, other = facts_of(left), facts_of(right)
    told = [(facts.numbers, facts.num_negated, facts.code, facts.links) for facts in (one, other)]
    return told[0] == told[1] and one.names <= other.words and other.names <= one.words


@given(st.integers(2, 999_999))
def test_numbers_in_words_are_those_in_digits(number: int) -> None:
    """With a word before and behind them, in any case."""
    assert in_digits(f"allow {in_words(number)} days") == f"allow {number} days"
    assert in_digits(f"Allow {in_words(number).upper()} days") == f"Allow {number} days"
    assert numbers_of(f"{number:,}".replace(",", "") + ".00") == {str(number)}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("twelve euros and fifty cents", {"12.5"}),
        ("EUR 12.50, or 12.5", {"12.5"}),
        ("1,000 of 12,500.50", {"1000", "12500.5"}),
        ("no one knows, one of them", set()),
        ("two three", {"2", "3"}),
        ("a hundred ways, hundreds of them", set()),
        ("the 24th at 09:00", {"24", "09:00"}),
        ("someone often weighs a stone", set()),
        ("1", set()),
    ],
)
def test_numbers_of_a_text(text: str, numbers: set[str]) -> None:
    """What is a number to people; ones are left out."""
    assert numbers_of(in_digits(text)) == numbers


@given(st.text(max_size=200))
def test_facts_of_any_text_agree_with_themselves(text: str) -> None:
    """And nothing that can be written down breaks the look at it."""
    assert agree(text, text)
    assert not is_reordered(sentences_of(text), sentences_of(text))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("run `make` at 9", "run `rake` at 9"),
        ("see https://a.example", "see https://b.example"),
        ("Allow thirty days.", "Allow thirteen days."),
        ("Go to Settings and tap Limits there.", "Go to Settings and tap Devices there."),
        ("Sie können die Adresse ändern.", "Sie können die Adresse nicht ändern."),
        ("Le contrat couvre le vol.", "Le contrat ne couvre pas le vol."),
        ("Il est permis de fumer.", "Il n'est pas permis de fumer."),
        ("El museo abre los festivos.", "El museo no abre los festivos."),
        ("Yes, you can share it.", "No, you cannot share it."),
    ],
)
def test_facts_that_differ(left: str, right: str) -> None:
    """Each of these alone."""
    assert not agree(left, right)
    assert not agree(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Sixty days, says the Card Desk.", "The Card Desk says 60 days."),
        ("Open Settings.", "Then open the settings."),
        ("- **eggs**\n- 2 cups of milk", "You need eggs and two cups of milk."),
        ("1. Open it.\n2. Close it.", "Open it, then close it."),
        ("It cannot be undone.", "It is impossible to undo."),
        ("Das Konto ist im Menü unter Daten und Karten zu finden.", "Im Menü stehen Daten und Karten bei Konto."),
    ],
)
def test_facts_that_agree(left: str, right: str) -> None:
    """Whatever words and layout they come in."""
    assert agree(left, right)


@pytest.mark.parametrize(
    ("left", "right", "reordered"),
    [
        ("In the final, Ghent beat Malmö by two goals.", "In the final, Malmö beat Ghent by two goals.", True),
        ("First close the valve, then open the pump.", "First open the pump, then close the valve.", True),
        ("It is blue left and red right.", "It is red left and blue right.", True),
        (
            "The judge is Harry C. Jr. and the host is Ann B. Lee.",
            "The judge is Ann B. Lee and the host is Harry C. Jr.",
            True,
        ),
        ("You need eggs, milk and flour.", "You need flour, eggs and milk.", False),
        ("Cakes come on Fridays. Bread is baked daily.", "Bread is baked daily. Cakes come on Fridays.", False),
        ("In 1953 the chapel was destroyed by a storm.", "The chapel was destroyed by a storm in 1953.", False),
        ("Rome is old.", "Paris is new.", False),
    ],
)
def test_is_reordered(left: str, right: str, *, reordered: bool) -> None:
    """Who has beaten whom; not where a sentence, an item or one part of a sentence stands."""
    assert is_reordered(sentences_of(left), sentences_of(right)) is reordered
    assert is_reordered(sentences_of(right), sentences_of(left)) is reordered
