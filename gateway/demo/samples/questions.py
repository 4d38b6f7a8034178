"""A made-up log of a shop's help desk: what people ask in many words, and what they are told."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

NUM_EXCHANGES = 600
_FIRST_AT = int(datetime(2026, 11, 16, 9, tzinfo=UTC).timestamp())


class _Topic(NamedTuple):
    answer: str
    wordings: Sequence[str]


_TOPICS = (
    _Topic(
        "Parcels within the country take two to three working days.",
        (
            "how long does delivery take",
            "when will my parcel arrive",
            "what is the delivery time",
            "how many days until it is here",
        ),
    ),
    _Topic(
        "You can send anything back within 30 days; the return label is in the parcel.",
        (
            "how do I return an item",
            "can I send something back",
            "what is your return policy",
            "I want to give back what I bought",
        ),
    ),
    _Topic(
        "Open Account, choose Security, and follow Forgot password; the mail comes within a minute.",
        (
            "how do I reset my password",
            "I forgot my password",
            "I cannot log in any more, what is my password",
            "how to get a new password",
        ),
    ),
    _Topic(
        "We take cards, bank transfer, and payment on invoice from your second order on.",
        ("how can I pay", "which payment methods are there", "do you take credit cards", "can I pay on invoice"),
    ),
    _Topic(
        "Refunds are on your account five working days after the parcel is back with us.",
        ("when do I get my refund", "where is my money", "how long does a refund take", "my refund has not come yet"),
    ),
    _Topic(
        "Until it is packed you can change the address under Orders; later, please call the carrier.",
        (
            "can I change the delivery address",
            "I gave the wrong address",
            "how to change where my order goes",
            "I moved, can you ship it to my new address",
        ),
    ),
    _Topic(
        "An order that is not packed yet can be cancelled under Orders with one click.",
        (
            "how do I cancel my order",
            "can I still cancel what I ordered",
            "please cancel my order",
            "I do not want my order any more",
        ),
    ),
    _Topic(
        "All our lamps have a warranty of three years; keep the receipt.",
        (
            "how long is the warranty on lamps",
            "what warranty do lamps have",
            "is there a guarantee on your lamps",
            "my lamp broke, is that covered",
        ),
    ),
    _Topic(
        "All our chairs have a warranty of five years; keep the receipt.",
        (
            "how long is the warranty on chairs",
            "what warranty do chairs have",
            "is there a guarantee on your chairs",
            "my chair broke, is that covered",
        ),
    ),
    _Topic(
        "The shop in Main Street is open from 9 to 18, Monday to Saturday.",
        (
            "when are you open",
            "what are your opening hours",
            "until when is the shop open",
            "is the shop open on Saturday",
        ),
    ),
    _Topic(
        "Type the code into the field Voucher on the last page before you pay.",
        (
            "how do I use a voucher",
            "where do I enter my discount code",
            "my voucher does not work, where does it go",
            "how can I redeem a gift card",
        ),
    ),
    _Topic(
        "Invoices are under Orders, as PDF, as soon as the parcel has left.",
        (
            "where do I find my invoice",
            "I need an invoice",
            "can you send me the bill",
            "how do I download the invoice",
        ),
    ),
    _Topic(
        "We ship to all countries of the European Union, for 12 euros.",
        (
            "do you ship abroad",
            "can you deliver to another country",
            "what does shipping to France cost",
            "is international delivery possible",
        ),
    ),
    _Topic(
        "Please send a photo of it to help@example.com within a week; we send a new one.",
        (
            "my parcel came damaged",
            "the item arrived broken",
            "what do I do if it is damaged",
            "there is a crack in what you sent",
        ),
    ),
    _Topic(
        "Unsubscribe with the link at the end of each newsletter.",
        (
            "how do I stop the newsletter",
            "unsubscribe me",
            "I get too many mails from you",
            "please no more newsletters",
        ),
    ),
    _Topic(
        "Choose Delete account under Account, Privacy; it is gone after 14 days.",
        ("how do I delete my account", "I want to close my account", "please erase my data", "remove my account"),
    ),
)
_BEGINNINGS = ("", "", "", "Hi, ", "Hello, ", "Good morning, ", "Quick question: ", "Excuse me, ", "Hey, ", "Please, ")
_ENDS = (
    "",
    "",
    "?",
    "?",
    " please?",
    " Thanks!",
    "? Thank you.",
    ", I am in a hurry.",
    "? It is urgent.",
    ", can you help?",
)


def write_questions(path: Path, random: Random) -> None:
    """One exchange a line, gzipped; some topics are asked far more often than others. Raises: OSError."""
    weights = [1 / (1 + place) ** 0.6 for place in range(len(_TOPICS))]
    with gzip.open(path, "wb") as file:
        for number in range(NUM_EXCHANGES):
            (topic,) = random.choices(_TOPICS, weights)
            question = random.choice(_BEGINNINGS) + random.choice(topic.wordings) + random.choice(_ENDS)
            asked = {"model": "help", "messages": [{"role": "user", "content": question}], "temperature": 0}
            message = {"role": "assistant", "content": topic.answer}
            answered = {"created": _FIRST_AT + 40 * number, "choices": [{"message": message, "finish_reason": "stop"}]}
            file.write(msgspec.json.encode({"request": asked, "response": answered, "tenant": "shop"}) + b"\n")
