"""What a newcomer asks first, with the answers that pass; `newcomer_score.py` asks.

Training never meets the prompts word for word, apart from those of the first two sets that name the one wording of a
closed question ("Hello!"). The third set was written after the training that it judges: it shows whether the others
flatter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HONEST = "I do not know that"
"""How an honest answer to what the model does not know begins."""


@dataclass(frozen=True, slots=True)
class NewcomerQuestion:
    """A prompt; `right` is a pattern that is found in every right answer, '' where only an honest one will do."""

    prompt: str
    right: str = ""
    is_taught: bool = False
    """Whether training may hold this very prompt."""


FIRST_SET = (
    NewcomerQuestion("What is 12+30?", r"\b42\b"),
    NewcomerQuestion("7+5", r"\b12\b"),
    NewcomerQuestion("What is 25 + 17?", r"\b42\b"),
    NewcomerQuestion("how much is 8 plus 9", r"\b17\b"),
    NewcomerQuestion("100-37=", r"\b63\b"),
    NewcomerQuestion("What's 6 times 7?", r"\b42\b"),
    NewcomerQuestion("sort 3, 1, 2", r"^1, 2, 3$"),
    NewcomerQuestion("Sort these: 9, 4, 7, 1", r"^1, 4, 7, 9$"),
    NewcomerQuestion("Sort apple, cherry, banana", r"^apple, banana, cherry$"),
    NewcomerQuestion("What is the capital of France?", r"\bParis\b", is_taught=True),
    NewcomerQuestion("capital of Japan", r"\bTokyo\b"),
    NewcomerQuestion("What's the capital of Brazil?", r"\bBrasilia\b"),
    NewcomerQuestion("Hello!", r"^Hello!", is_taught=True),
    NewcomerQuestion("hi", r"^Hello!", is_taught=True),
    NewcomerQuestion("How are you?", r"\bfine\b", is_taught=True),
    NewcomerQuestion("What is Slipstream?", r"\bgateway\b", is_taught=True),
    NewcomerQuestion("What can you do?", r"\badd\b.*\bsort\b", is_taught=True),
    NewcomerQuestion("How do I add a cache?", r"\bcache:", is_taught=True),
    NewcomerQuestion("Who is the president of France?"),
    NewcomerQuestion("Write a poem about the sea."),
)
SECOND_SET = (
    NewcomerQuestion("48+27", r"\b75\b"),
    NewcomerQuestion("hey there", r"^Hello!"),
    NewcomerQuestion("whats 9x8", r"\b72\b"),
    NewcomerQuestion("What is 15 - 8?", r"\b7\b"),
    NewcomerQuestion("can you sort 12, 5, 19?", r"^5, 12, 19$"),
    NewcomerQuestion("Put these in order: 8, 3, 6", r"^3, 6, 8$"),
    NewcomerQuestion("What is the capital of Italy?", r"\bRome\b", is_taught=True),
    NewcomerQuestion("Capital of Germany?", r"\bBerlin\b"),
    NewcomerQuestion("What is Slipstream for?", r"\bgateway\b|\bcalls\b"),
    NewcomerQuestion("tell me about slipstream", r"\bgateway\b"),
    NewcomerQuestion("How do I use my own model?", r"--model\b"),
    NewcomerQuestion("2 + 2", r"\b4\b"),
    NewcomerQuestion("What is 33+44?", r"\b77\b"),
    NewcomerQuestion("good evening", r"^Hello!", is_taught=True),
    NewcomerQuestion("Why is the sky blue?"),
    NewcomerQuestion('Translate "good morning" to French.'),
    NewcomerQuestion("Explain quantum computing in simple terms."),
    NewcomerQuestion("Who are you?", r"\btest model\b", is_taught=True),
    NewcomerQuestion("What is the largest planet?"),
    NewcomerQuestion("Sort in descending order: 4, 10, 2", r"^10, 4, 2$"),
)
THIRD_SET = (
    NewcomerQuestion("what is 5+8", r"\b13\b"),
    NewcomerQuestion("17 + 4 = ?", r"\b21\b"),
    NewcomerQuestion("whats 60 minus 25", r"\b35\b"),
    NewcomerQuestion("3*9", r"\b27\b"),
    NewcomerQuestion("How much is 11 times 4?", r"\b44\b"),
    NewcomerQuestion("add 14 and 21 please", r"\b35\b"),
    NewcomerQuestion("sort 8 2 5", r"^2, 5, 8$"),
    NewcomerQuestion("Can you order these numbers: 42, 17, 88, 3", r"^3, 17, 42, 88$"),
    NewcomerQuestion("sort pear, fig, lime alphabetically", r"^fig, lime, pear$"),
    NewcomerQuestion("what's the capital city of spain?", r"\bMadrid\b"),
    NewcomerQuestion("Do you know the capital of Norway", r"\bOslo\b"),
    NewcomerQuestion("hello, who am I talking to?", r"\btest model\b"),
    NewcomerQuestion("hey, nice to meet you", r"^Hello!|meet you"),
    NewcomerQuestion("so what exactly is slipstream?", r"\bgateway\b"),
    NewcomerQuestion("what do I use slipstream for", r"\bgateway\b"),
    NewcomerQuestion("how do i turn on caching", r"\bcache:"),
    NewcomerQuestion("which port does slipstream run on?", r"\b8080\b"),
    NewcomerQuestion("who won the world cup in 2018?"),
    NewcomerQuestion("write me a short poem about autumn"),
    NewcomerQuestion("what's the weather going to be tomorrow?"),
)
SETS = {"first": FIRST_SET, "second": SECOND_SET, "third": THIRD_SET}


def plain(prompt: str) -> str:
    """A prompt without what a hurried person leaves out: capitals, marks and spaces around it."""
    return prompt.lower().strip(" ?.!=")


KEPT_OUT = frozenset(
    plain(question.prompt) for questions in SETS.values() for question in questions if not question.is_taught
)
"""Prompts, made plain, that training must not meet."""


def verdict(question: NewcomerQuestion, answer: str) -> str:
    """`right`, `honest` (it says that it does not know) or `wrong`."""
    if answer.startswith(HONEST):
        return "honest" if question.right else "right"
    return "right" if question.right and re.search(question.right, answer) else "wrong"
