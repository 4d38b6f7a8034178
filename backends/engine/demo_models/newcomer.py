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
class Question:
    """A prompt; `right` is a pattern that is found in every right answer, '' where only an honest one will do."""

    prompt: str
    right: str = ""
    is_taught: bool = False
    """Whether training may hold this very prompt."""


FIRST_SET = (
    Question("What is 12+30?", r"\b42\b"),
    Question("7+5", r"\b12\b"),
    Question("What is 25 + 17?", r"\b42\b"),
    Question("how much is 8 plus 9", r"\b17\b"),
    Question("100-37=", r"\b63\b"),
    Question("What's 6 times 7?", r"\b42\b"),
    Question("sort 3, 1, 2", r"^1, 2, 3$"),
    Question("Sort these: 9, 4, 7, 1", r"^1, 4, 7, 9$"),
    Question("Sort apple, cherry, banana", r"^apple, banana, cherry$"),
    Question("What is the capital of France?", r"\bParis\b", is_taught=True),
    Question("capital of Japan", r"\bTokyo\b"),
    Question("What's the capital of Brazil?", r"\bBrasilia\b"),
    Question("Hello!", r"^Hello!", is_taught=True),
    Question("hi", r"^Hello!", is_taught=True),
    Question("How are you?", r"\bfine\b", is_taught=True),
    Question("What is Slipstream?", r"\bgateway\b", is_taught=True),
    Question("What can you do?", r"\badd\b.*\bsort\b", is_taught=True),
    Question("How do I add a cache?", r"\bcache:", is_taught=True),
    Question("Who is the president of France?"),
    Question("Write a poem about the sea."),
)
SECOND_SET = (
    Question("48+27", r"\b75\b"),
    Question("hey there", r"^Hello!"),
    Question("whats 9x8", r"\b72\b"),
    Question("What is 15 - 8?", r"\b7\b"),
    Question("can you sort 12, 5, 19?", r"^5, 12, 19$"),
    Question("Put these in order: 8, 3, 6", r"^3, 6, 8$"),
    Question("What is the capital of Italy?", r"\bRome\b", is_taught=True),
    Question("Capital of Germany?", r"\bBerlin\b"),
    Question("What is Slipstream for?", r"\bgateway\b|\bcalls\b"),
    Question("tell me about slipstream", r"\bgateway\b"),
    Question("How do I use my own model?", r"--model\b"),
    Question("2 + 2", r"\b4\b"),
    Question("What is 33+44?", r"\b77\b"),
    Question("good evening", r"^Hello!", is_taught=True),
    Question("Why is the sky blue?"),
    Question('Translate "good morning" to French.'),
    Question("Explain quantum computing in simple terms."),
    Question("Who are you?", r"\btest model\b", is_taught=True),
    Question("What is the largest planet?"),
    Question("Sort in descending order: 4, 10, 2", r"^10, 4, 2$"),
)
THIRD_SET = (
    Question("what is 5+8", r"\b13\b"),
    Question("17 + 4 = ?", r"\b21\b"),
    Question("whats 60 minus 25", r"\b35\b"),
    Question("3*9", r"\b27\b"),
    Question("How much is 11 times 4?", r"\b44\b"),
    Question("add 14 and 21 please", r"\b35\b"),
    Question("sort 8 2 5", r"^2, 5, 8$"),
    Question("Can you order these numbers: 42, 17, 88, 3", r"^3, 17, 42, 88$"),
    Question("sort pear, fig, lime alphabetically", r"^fig, lime, pear$"),
    Question("what's the capital city of spain?", r"\bMadrid\b"),
    Question("Do you know the capital of Norway", r"\bOslo\b"),
    Question("hello, who am I talking to?", r"\btest model\b"),
    Question("hey, nice to meet you", r"^Hello!|meet you"),
    Question("so what exactly is slipstream?", r"\bgateway\b"),
    Question("what do I use slipstream for", r"\bgateway\b"),
    Question("how do i turn on caching", r"\bcache:"),
    Question("which port does slipstream run on?", r"\b8080\b"),
    Question("who won the world cup in 2018?"),
    Question("write me a short poem about autumn"),
    Question("what's the weather going to be tomorrow?"),
)
SETS = {"first": FIRST_SET, "second": SECOND_SET, "third": THIRD_SET}


def plain(prompt: str) -> str:
    """A prompt without what a hurried person leaves out: capitals, marks and spaces around it."""
    return prompt.lower().strip(" ?.!=")


KEPT_OUT = frozenset(
    plain(question.prompt) for questions in SETS.values() for question in questions if not question.is_taught
)
"""Prompts, made plain, that training must not meet."""


def verdict(question: Question, answer: str) -> str:
    """`right`, `honest` (it says that it does not know) or `wrong`."""
    if answer.startswith(HONEST):
        return "honest" if question.right else "right"
    return "right" if question.right and re.search(question.right, answer) else "wrong"
