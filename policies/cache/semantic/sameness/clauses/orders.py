"""What comes before what, what follows from what, and from where to where, in English sentences.

"You must pay before you sign" and "You have to sign before you pay" have the same words, and so have "from Bern to
Basel" and the way back.
"""

from __future__ import annotations

import re

from policies.cache.semantic.sameness.clauses.deeds import words_of
from policies.cache.semantic.sameness.clauses.relations import Relation
from policies.cache.semantic.sameness.clauses.verbs import stem_of, words_in
from policies.cache.semantic.sameness.words import COMMON

_HOW = r"before|after|because|if|until"
_JOINED = re.compile(rf"\b(?:{_HOW})\b", re.IGNORECASE)
_BEHIND = re.compile(rf"(?P<one>.+?),? (?P<how>{_HOW}) (?P<other>.+)", re.IGNORECASE | re.DOTALL)
_IN_FRONT = re.compile(rf"(?P<how>{_HOW}) (?P<other>[^,]+), (?P<one>.+)", re.IGNORECASE | re.DOTALL)
_TURNS_OVER = re.compile(r"\b(?:not|no|never|cannot|only|even|unless|nobody|nothing|none)\b", re.IGNORECASE)
"""None signs before paying who pays before signing."""
_PLACE = r"(?:(?:the|an?|your|our|my) )?{}\b"
_WORDS = r"[\w:.-]*\w(?: (?!to\b|from\b|and\b|or\b|in\b|on\b|at\b|by\b|with\b|is\b|are\b|takes?\b)[\w-]+)??"
_FROM_TO = re.compile(
    rf"\bfrom {_PLACE.format(rf'(?P<one>{_WORDS})')} to {_PLACE.format(rf'(?P<other>{_WORDS})')}", re.IGNORECASE
)
_TO_FROM = re.compile(
    rf"\bto {_PLACE.format(rf'(?P<other>{_WORDS})')} from {_PLACE.format(rf'(?P<one>{_WORDS})')}", re.IGNORECASE
)


def orders_of(sentence: str) -> list[Relation]:
    """All that a sentence seems to tell; of the clauses of one joined twice none."""
    ways = [
        Relation(words_of(found["one"]), "to", words_of(found["other"]))
        for form in (_FROM_TO, _TO_FROM)
        for found in form.finditer(sentence)
    ]
    clauses = _clauses(sentence)
    return ways if clauses is None else [*ways, clauses]


def _clauses(sentence: str) -> Relation | None:
    if len(_JOINED.findall(sentence)) != 1 or _TURNS_OVER.search(sentence) is not None:
        return None
    found = _IN_FRONT.fullmatch(sentence) or _BEHIND.fullmatch(sentence)
    if found is None:
        return None
    how, one, other = found["how"].lower(), _stems(found["one"]), _stems(found["other"])
    if not one or not other:
        return None
    return Relation(other, "before", one) if how == "after" else Relation(one, how, other)


def _stems(clause: str) -> frozenset[str]:
    return frozenset(stem_of(word) for word in words_in(clause) if word not in COMMON)
