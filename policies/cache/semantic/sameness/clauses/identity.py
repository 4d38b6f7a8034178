"""What is what, in English sentences that say it with the description in front or behind.

"Badminton and chess are the sports of the town" has the words of "The sports of the town are badminton and chess" in
another order, and a head took the two for different.
"""

from __future__ import annotations

import re

_BEGINS_OTHERWISE = (
    "the|this|that|these|those|there|here|it|he|she|they|we|you|i|what|which|who|where|when|how|why|if|so|not|no|"
    "neither|only|in|on|at|for|from|to|with|within|after|before|during|under|over|behind|and|or|but|as|both"
)
_LINKS = r"(?:that|which|who|whom|whose|where|when|while|if|because|but|not|never|is|are|was|were|be|been)"
_WORD = rf"(?!{_LINKS}\b)[^\s;:?!]+"
_WORDS = rf"{_WORD}(?: {_WORD}){{0,23}}?"
_STATED = re.compile(
    rf"(?!(?:{_BEGINS_OTHERWISE})\b)(?P<what>{_WORDS}) (?P<is>is|are|was|were) the (?!same\b)(?P<description>{_WORDS})",
)


def say_what_is_what(one: str, other: str) -> bool:
    """Whether one of two sentences is the other turned round: "Tulip is the mascot", "The mascot is Tulip"."""
    one, other = (sentence.casefold().rstrip(".!") for sentence in (one, other))
    return _turned_round(one) == other or _turned_round(other) == one


def _turned_round(sentence: str) -> str | None:
    """With its description in front; None where it has none behind, or says more."""
    found = _STATED.fullmatch(sentence)
    return f"the {found['description']} {found['is']} {found['what']}" if found is not None else None
