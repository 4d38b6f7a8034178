"""A text as people read it: without width of letters, case, white space, sentences that only greet or offer help."""

from __future__ import annotations

import re

from policies.cache.semantic.sameness.signs import of_one_width

_SPACE = re.compile(r"\s+")
_EDGES = ".!?,;: "
_WORD = re.compile(r"\w+")
_CLAUSE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
_COURTESY = re.compile(
    r"sure|of course|certainly|absolutely|hello|hi|great question|good question|thank|happy|glad|hope|let me know|"
    r"here(?:'s| is| are)|(?:i )?found|any (?:other|more|further) questions|anything else|feel free|reach out"
)
_COURTEOUS = frozenset(
    _WORD.findall(
        "sure of course certainly absolutely hello hi great good thanks thank you for asking your the a this that s is "
        "are here what i found answer question details information steps let me us know if need want have any more "
        "other further additional questions anything else happy glad to help assist assistance hope it helps please "
        "feel free ask reach out with"
    )
)
"""Words of sentences that say nothing about the matter: those that have no others, and one that marks a courtesy."""


def normal_form(text: str) -> str:
    """The text without what people do not read: width of letters, case, white space, punctuation at its ends."""
    return _SPACE.sub(" ", of_one_width(text).casefold()).strip(_EDGES)


def without_courtesies(text: str) -> str:
    """The normal form without sentences at either end that only greet, lead in, or offer more help."""
    clauses = [clause for clause in _CLAUSE_END.split(text) if not clause.isspace() and clause]
    first, last = 0, len(clauses)
    while first < last and _is_courtesy(clauses[first]):
        first += 1
    while first < last and _is_courtesy(clauses[last - 1]):
        last -= 1
    return normal_form(" ".join(clauses[first:last]) or text)


def _is_courtesy(clause: str) -> bool:
    plain = clause.casefold()
    return _COURTESY.search(plain) is not None and all(word in _COURTEOUS for word in _WORD.findall(plain))
