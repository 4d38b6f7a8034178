"""Words that turn a sentence over: of each sort it matters whether there is an even or an odd number of them.

"You can do it without us", "there is no need to ask us" and "only we can do it" have hardly a word that says yes or no
by itself; what they say together the heads learn, from which sorts two sentences differ in.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

_WORDS = {
    "denials": "not no nor never none neither nobody nothing cannot hardly nicht kein keine keinen keinem keiner "
    "keines nie niemals weder ne n nunca jamás ninguno ninguna ningunos ningunas ningún non",
    "lacks": "without unless except excluding lack lacks ohne sans sin senza",
    "opposites": "impossible unable unnecessary unavailable unsafe incompatible useless missing forbidden prohibited "
    "barred banned exclude excludes excluded closed shut stopped "
    "refuse refuses stop stops prevent prevents unmöglich verboten interdit interdite interdits interdites imposible "
    "prohibido prohibida prohibidos prohibidas",
    "bounds": "only solely reserved except nur seulement solo soltanto",
    "duties": "must need needs needed require requires required necessary unnecessary mandatory obliged obligation "
    "depend depends insist insists "
    "muss müssen nötig faut doit doivent debe deve",
    "selves": "yourself own alone oneself themselves himself herself unaided unassisted independently self selbst "
    "allein",
}
_PARTICLE = re.compile(r"^\W*(?:no|nein|non)\W*[,;:.!-]\W*(?=\w)")
_CLAUSE_END = re.compile(r"[,;:.!?]")
_WORD = re.compile(r"[^\W\d_]+")
_PAIRS = {
    ("have", "to"): "duties",
    ("has", "to"): "duties",
    ("had", "to"): "duties",
    ("hay", "que"): "duties",
    ("ask", "for"): "duties",
    ("asks", "for"): "duties",
    # What one must not do is no duty.
    ("must", "not"): "duties",
    ("free", "of"): "lacks",
    ("free", "from"): "lacks",
}

OPERATORS = tuple(_WORDS)
"""The sorts."""

TURNING = tuple(sort for sort in OPERATORS if sort not in ("lacks", "selves"))
"""Those that make a yes of a no whatever is spoken of. Who can do a thing alone, or without help, can do it: there the
others turn nothing.
"""

_SORTS_OF: dict[str, tuple[str, ...]] = {
    word: tuple(sort for sort, listed in _WORDS.items() if word in listed.split())
    for words in _WORDS.values()
    for word in words.split()
}


class Operators(NamedTuple):
    """Of a text. `odd` [OPERATORS]: whether it has an odd number of each sort; `is_no`: of those in `TURNING` together,
    and `begins_with_no`: in the first clause that has any, for the next may say the same once more.
    """

    odd: tuple[bool, ...]
    is_no: bool
    begins_with_no: bool


def operators_of(text: str) -> Operators:
    """Of a text in lower case."""
    # "No, you can't" says one no.
    clauses = [_counts(_WORD.findall(clause)) for clause in _CLAUSE_END.split(_PARTICLE.sub("", text))]
    odd = tuple(sum(counts[sort] for counts in clauses) % 2 == 1 for sort in OPERATORS)
    turning = [sum(counts[sort] for sort in TURNING) for counts in clauses]
    return Operators(odd, sum(turning) % 2 == 1, next((count % 2 == 1 for count in turning if count), False))


def _counts(words: list[str]) -> Counter[str]:
    counts = Counter(sort for word in words for sort in _SORTS_OF.get(word, ()))
    counts.update(_PAIRS[pair] for pair in pairwise(words) if pair in _PAIRS)
    return counts
