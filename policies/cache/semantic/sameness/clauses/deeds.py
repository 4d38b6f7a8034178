"""Who does what to whom, in English clauses, and in German ones between persons: "you must send us the form".

Pronouns change with the part that they play, and verbs with the tense, so that "We owe them 50 euros" and "They owe us
50 euros" share few words that stand elsewhere, and a head took them for the same.
"""

from __future__ import annotations

import re

from policies.cache.semantic.sameness.clauses.persons import SUBJECT_OF
from policies.cache.semantic.sameness.clauses.relations import Relation
from policies.cache.semantic.sameness.clauses.verbs import stem_of

_GERMAN_CASES = "mich/ich mir/ich dich/du dir/du ihn/er ihm/er uns/wir euch/ihr ihnen/sie"
_SUBJECT_OF = SUBJECT_OF | dict(case.split("/") for case in _GERMAN_CASES.split())
_PERSONS = r"(?:i|me|we|us|you|he|him|she|her|they|them)"
_DETERMINER = r"(?:the|an?|our|your|my|his|its|their|this|that|these|those|every|each|any|all|both|no)"
_GOES_BEFORE = (
    r"(?:will|would|can|could|may|might|must|should|shall|do|does|did|is|are|was|were|be|been|being|has|have|had|not|"
    r"never|always|also|already|only|still|just|then|who|that|which|\w+ly|"
    r"(?:have|has|had|needs?|wants?|going|able|ought|supposed|required|asked) to)"
)
_IS_NO_DEED = (
    rf"(?:{_GOES_BEFORE}|{_PERSONS}|{_DETERMINER}|and|or|but|nor|if|when|while|where|because|as|than|like|of|in|on|at|"
    r"by|to|for|from|with|within|without|after|before|during|until|since|between|under|over|into|about|per|via|so|"
    r"meets?|met|marr(?:y|ies|ied)|equals?|equalled|resembles?|resembled|match(?:es|ed)?|joins?|joined|"
    r"fights?|fought|borders?|bordered|touch(?:es|ed)?|intersects?|overlaps?)"
)
"""What stands between two things without saying that one does something to the other, or says it of both alike."""
_LINK = r"(?:and|or|but|that|which|who|by)"
_THING = rf"(?!{_IS_NO_DEED}\b)[\w'-]+"
_ONE = rf"(?:{_DETERMINER} {_THING}(?: {_THING}){{0,2}}|{_PERSONS}|(?-i:[A-Z])[\w'&-]*(?: (?-i:[A-Z])[\w'&-]*){{0,2}})"
_CLAUSE = re.compile(
    rf"\b(?=(?P<who>{_ONE}) (?:{_GOES_BEFORE} ){{0,4}}(?P<does>{_THING}) "
    rf"(?:(?:(?!{_PERSONS}\b)[\w'-]+ ){{0,4}}?(?P<on>to|from|for|on|at|against|after|before|over) )?"
    rf"(?P<whom>{_ONE})\b)",
    re.IGNORECASE,
)
_DONE = re.compile(
    rf"\b(?P<whom>{_ONE}) (?:{_GOES_BEFORE} ){{0,3}}(?:is|are|was|were|be|been|being) (?:\w+ly )?(?P<does>{_THING}) "
    rf"(?:(?!{_LINK}\b)[\w'-]+ ){{0,4}}?by (?P<who>{_ONE})\b",
    re.IGNORECASE,
)
_GERMAN_ONE = r"(?P<who>ich|du|er|wir|ihr|sie)"
_GERMAN_OTHER = r"(?P<whom>mich|mir|dich|dir|ihn|ihm|uns|euch|sie|ihnen)\b"
_GERMAN = [
    re.compile(rf"\b{_GERMAN_ONE} (?P<does>\w+) {_GERMAN_OTHER}", re.IGNORECASE),
    re.compile(rf"\b(?P<does>\w+) {_GERMAN_ONE} {_GERMAN_OTHER}", re.IGNORECASE),
]
_GERMAN_ENDING = re.compile(r"(?:en|est|et|st|e|t|n)$")
_NAMES_NOTHING = frozenset({"one", "ones"})
_ARTICLE = re.compile(rf"{_DETERMINER} ", re.IGNORECASE)


def deeds_of(sentence: str) -> list[Relation]:
    """All that a sentence seems to tell; of one clause perhaps several."""
    deeds = [
        _deed(found, f"{stem_of(found['does'])} {_direction(found['on'])}") for found in _CLAUSE.finditer(sentence)
    ]
    if " by " in sentence:
        deeds += [_deed(found, f"{stem_of(found['does'])} ") for found in _DONE.finditer(sentence)]
    for form in _GERMAN:
        deeds += [_deed(found, _GERMAN_ENDING.sub("", found["does"].lower())) for found in form.finditer(sentence)]
    return deeds


def _deed(found: re.Match[str], does: str) -> Relation:
    return Relation(words_of(found["who"]), does, words_of(found["whom"]))


def _direction(preposition: str | None) -> str:
    """ "Send it to us" is "send us it", and taking from us is neither."""
    return preposition if preposition is not None and preposition.lower() not in ("to", "for") else ""


def words_of(one: str) -> frozenset[str]:
    """Of a thing or a person, "us" as "we"."""
    words = frozenset(_SUBJECT_OF.get(word, word) for word in _ARTICLE.sub("", one).lower().split())
    return words - _NAMES_NOTHING or words
