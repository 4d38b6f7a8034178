"""Who does what to whom, what comes before what, from where to where: told the other way round, and told as it was."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.sameness.clauses import directions
from policies.cache.semantic.sameness.clauses.directions import relations_of


def are_turned(one: str, other: str) -> bool:
    """In both orders of the two alike."""
    told = directions.are_turned(one, other)
    assert told == directions.are_turned(other, one)
    return told


@pytest.mark.parametrize(
    ("sentence", "same", "turned"),
    [
        ("We owe them 50 euros.", "They are owed 50 euros by us.", "They owe us 50 euros."),
        ("He called her back.", "He has called her back.", "She called him back."),
        ("You must send us the form.", "You have to send the form to us.", "We must send you the form."),
        ("The dog bites the postman.", "The dog bit the postman.", "The postman has bitten the red dog."),
        (
            "The old file overwrites the new one.",
            "The old one overwrote the new file.",
            "The new file overwrites the old one.",
        ),
        ("Your employer pays you.", "You are paid by your employer.", "You pay your employer."),
        ("Norvia bought Halden Foods.", "Norvia has bought Halden Foods.", "Halden Foods will buy Norvia."),
        ("The agency refunds the guest.", "It is the agency that refunds the guest.", "The guest refunds the agency."),
        ("We take 5 euros from you.", "5 euros are taken by us.", "You take 5 euros from us."),
        ("Bob gave the key to Alice.", "Bob gave Alice the key.", "Bob was given the key by Alice."),
        ("Norvia is owned by Halden Foods.", "Halden Foods owns Norvia.", "Norvia owns Halden Foods."),
        (
            "The tenant must be informed by the landlord.",
            "The landlord must inform the tenant.",
            "The tenant must inform the landlord.",
        ),
        ("The form is checked by the branch.", "The branch checks the form.", "The form checks the branch."),
        ("The seller will be paid by the buyer.", "The buyer will pay the seller.", "The seller pays the buyer."),
        ("The guest was carried by his host.", "His host carries the guest.", "The guest carries his host."),
        ("Wir schulden Ihnen 50 Euro.", "50 Euro schulden wir Ihnen.", "Sie schulden uns 50 Euro."),
        ("Er ruft dich an.", "Morgen ruft er dich an.", "Du rufst ihn an."),
        ("You must pay before you sign.", "You have to sign after you pay.", "You have to sign before paying."),
        ("After the audit, we open the file.", "The audit comes before we open the file.", "We audit after opening."),
        ("You pay if you cancel.", "If you cancel, you pay.", "You cancel if you pay."),
        ("It broke because it fell.", "Because it fell, it broke.", "It fell because it broke."),
        ("Switch from monthly to yearly.", "To yearly from monthly.", "Switching from yearly to monthly works."),
        ("The train from Bern to Basel is late.", "To Basel from Bern.", "The late train goes from Basel to Bern."),
    ],
)
def test_the_other_way_round_is_seen_in_any_tense_voice_and_order(sentence: str, same: str, turned: str) -> None:
    """And in nothing that tells it as it is."""
    assert are_turned(sentence, turned)
    assert are_turned(same, turned) or not relations_of(same)
    assert not are_turned(sentence, same)
    assert not are_turned(sentence, sentence)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Anna met Clara.", "Clara met Anna."),
        ("The A5 meets the A9.", "The A9 meets the A5."),
        ("You can call us and we can call you.", "We can call you and you can call us."),
        ("You can call us and we can call you.", "You can call us."),
        ("You can not sign before you pay.", "You must pay before you sign."),
        ("You pay only if you cancel.", "You cancel if you pay."),
        ("You will get the card from us.", "We will send you the card."),
        ("We warn you.", "You thank us."),
        ("The form is checked by the branch.", "Something else is said here."),
        ("Sie bekommen von uns 50 Euro.", "Wir senden Ihnen 50 Euro."),
        ("The shop is open from 9:00 to 17:00.", "Until 17:00 the shop is open, from 9:00 on."),
        ("Red is cheaper than blue.", "Blue is more expensive than red."),
        ("", "by from to before"),
    ],
)
def test_what_is_mutual_told_twice_or_denied_is_not_turned(left: str, right: str) -> None:
    """Neither does another verb say the same thing the other way round."""
    assert not are_turned(left, right)


_WORDS = (
    "the The a we us you them Anna Norvia was is will be not paid pays sent sends by to from before after if because "
    "landlord card 5 , . * wir schulden sie uns ihnen"
)


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=16).map(" ".join))
def test_any_words_are_read_and_none_is_turned_against_itself(text: str) -> None:
    """Whatever is read into them."""
    assert not are_turned(text, text)
    are_turned(text, " ".join(reversed(text.split())))


@pytest.mark.parametrize(
    "text",
    [
        "you " * 1_200,
        "the a " * 800,
        "We will " * 600,
        "the x y z " * 480,
        "We pay a b c d to " * 250,
        "A " * 2_400,
        "x" * 4_800,
        "from a to " * 480,
        "we are paid by them " * 240,
        "the the " * 600 + "is paid by " * 400,
    ],
)
def test_a_long_sentence_is_read_at_once(text: str) -> None:
    """No pattern tries all ways to part it."""
    began = process_time()
    are_turned(text, text[1:])
    assert process_time() - began < 1
