"""Questions with their yes or no, as statements."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.parts import parts_of
from policies.cache.semantic.sameness.polar import stated


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Can you pay by card? No", ["You can not pay by card."]),
        ("Can I bring my dog? Yes, you can. Keep it on a leash.", ["You can bring your dog.", "Keep it on a leash."]),
        ("### Do I need a visa?\n\nNo. Citizens enter freely.", ["You do not need a visa.", "Citizens enter freely."]),
        ("Is the deposit refundable? No, we keep it.", ["The deposit is not refundable.", "We keep it."]),
        ("Q: Am I covered?\nA: Yes.", ["You are covered."]),
        ("1. **Is there a fee?** No\n2. Wait.", ["There is not a fee.", "Wait."]),
        ("Must I show up? No.", ["You need not show up."]),
        ("Must I show up? Yes!", ["You must show up."]),
        ("Refundable? No.", ["No, not refundable."]),
        ("* **Refundable**: no\n* VAT: yes", ["No, not refundable.", "Yes, VAT."]),
        ("Fee: 3 euros. Open on Sundays: no", ["Fee: 3 euros.", "No, not open on Sundays."]),
        ("Encrypted: ✅\nSSO: ❌", ["Yes, encrypted.", "No, not SSO."]),
        ("Sauna \u2013 yes, until 9", ["Yes, sauna.", "Until 9."]),
        ("Ticket needed? Yes. Cloakroom? No.", ["Yes, ticket needed.", "No, not cloakroom."]),
    ],
)
def test_what_is_asked_and_answered_is_said(text: str, parts: list[str]) -> None:
    """Where the answer denies it, it is denied."""
    told = parts_of(text)
    assert told is not None
    assert told.texts == parts


@pytest.mark.parametrize(
    "text",
    [
        "Note: no refunds are given.",
        "Can I go? No one knows.",
        "Who may go? Yes.",
        "Answer: no",
        "Is it late? It is nine.",
        "Can not you go? No",
        "Yes. It is open.",
        "It is true: nobody came.",
        "Is this it? No fee is charged.",
    ],
)
def test_what_only_looks_like_it_is_left(text: str) -> None:
    """No question, no yes or no, or one of which nobody knows what it denies."""
    assert stated(text) == text


@pytest.mark.parametrize("one", ["Do you deliver? Yes.", "Delivery: yes", "* Delivery? No", "Is it new? No, used."])
def test_yes_and_no_never_are_one(one: str) -> None:
    """They are what the whole answer is about."""
    other = one.replace("Yes", "No").replace("yes", "no") if "es" in one else one.replace("No", "Yes")
    assert other != one
    assert parts_of(one) != parts_of(other)


@given(st.text(alphabet="Can I?yesno Noyes:.,-\n*1i", max_size=80))
def test_nothing_breaks_it(text: str) -> None:
    """Whatever stands there; what has been stated once is not stated again in another way."""
    assert stated(stated(stated(text))) == stated(stated(text))


@pytest.mark.parametrize("text", ["Can I go " * 600, "? Yes" * 900, "a: " * 1_600, ". can you" * 500, "\n" * 4_800])
def test_it_takes_no_time(text: str) -> None:
    """However long it looks for an end."""
    began = time.process_time()
    stated(text)
    assert time.process_time() - began < 0.5
