"""Words that turn a sentence over: of each sort it matters whether there is an even or an odd number of them.

"You can do it without us", "there is no need to ask us" and "only we can do it" have hardly a word that says yes or no
by itself; what they say together the heads learn, from which sorts two sentences differ in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_WORDS = {
    "denials": "not no nor never none neither nobody nothing cannot hardly nicht kein keine keinen keinem keiner "
    "keines nie niemals weder ne n nunca jamás ninguno ninguna ningunos ningunas ningún non",
    "lacks": "without unless except excluding lack lacks ohne sans sin senza",
    "opposites": "impossible unable unnecessary unavailable unsafe forbidden prohibited barred banned excluded closed "
    "refuse refuses stop stops prevent prevents unmöglich verboten interdit interdite interdits interdites imposible "
    "prohibido prohibida prohibidos prohibidas",
    "bounds": "only just solely except nur seulement solo soltanto",
    "duties": "must need needs needed require requires required necessary mandatory obliged obligation depend depends "
    "muss müssen nötig faut doit doivent debe deve",
    "selves": "yourself own alone oneself themselves himself herself unaided unassisted independently self selbst "
    "allein",
}
_PAIRS = {
    ("have", "to"): "duties",
    ("has", "to"): "duties",
    ("had", "to"): "duties",
    ("hay", "que"): "duties",
    ("free", "of"): "lacks",
    ("free", "from"): "lacks",
}

OPERATORS = tuple(_WORDS)
"""The sorts."""

_SORTS_OF: dict[str, tuple[str, ...]] = {
    word: tuple(sort for sort, listed in _WORDS.items() if word in listed.split())
    for words in _WORDS.values()
    for word in words.split()
}


def operators_of(words: Sequence[str]) -> tuple[bool, ...]:
    """[OPERATORS]: whether a text, given as its words in lower case, has an odd number of each sort."""
    odd = dict.fromkeys(OPERATORS, False)
    for word in words:
        for sort in _SORTS_OF.get(word, ()):
            odd[sort] = not odd[sort]
    for pair in pairwise(words):
        if pair in _PAIRS:
            odd[_PAIRS[pair]] = not odd[_PAIRS[pair]]
    return tuple(odd.values())
