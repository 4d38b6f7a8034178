"""One question with its only right answer, and the rule that keeps some questions out of training."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from backends.engine.demo_models.newcomer import KEPT_OUT, plain

HELD_OUT_SHARE = 16
"""One prompt in this many is kept out of training."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and the answer that it has; `context` is the former prompt when the answer depends on it.

    `is_core` marks plain wordings that are always trained (and therefore never scored).
    """

    task: str
    prompt: str
    answer: str
    role: Literal["user", "tool"] = "user"
    context: str = ""
    is_core: bool = False


Task = Callable[[Random, float], Turn]
"""Draws one turn; the number is the level, 0 (short) .. 1 (full length)."""


def is_held_out(turn: Turn) -> bool:
    """Whether this prompt belongs to the held-out side; depends on nothing but its text and its context."""
    if plain(turn.prompt) in KEPT_OUT:
        return True
    if turn.is_core:
        return False
    digest = hashlib.blake2b(f"{turn.context}\x00{turn.prompt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def casual(rng: Random, text: str, *, share: float = 0.1) -> str:
    """The prompt as a hurried person types it, in `share` of the cases: small first letter, no final mark."""
    if rng.random() >= share:
        return text
    return text[0].lower() + text[1:].rstrip(" ?.!=")


def hurried(rng: Random, text: str, *, share: float = 0.3) -> str:
    """The prompt as many type to a machine, in `share` of the cases: `casual`, or without capitals and apostrophes."""
    if rng.random() >= share:
        return text
    typed = casual(rng, text, share=1.0)
    return typed.lower().replace("'", "") if rng.random() < 0.5 else typed


def opened(rng: Random, text: str, *, share: float = 0.4) -> str:
    """The prompt behind a polite opening, in `share` of the cases."""
    return rng.choice(OPENINGS) + text if rng.random() < share else text


def join_words(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


OPENINGS = (
    "Please tell me: ",
    "Hello! ",
    "Hi. ",
    "Quick question: ",
    "I would like to know: ",
    "One more thing: ",
    "Can you help me? ",
    "Good morning. ",
    "Next: ",
    "Please: ",
)
