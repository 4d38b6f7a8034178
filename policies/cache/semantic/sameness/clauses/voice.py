"""What has been done, in English sentences in the passive voice that name who did it, told by who did it.

"The dog was bitten by the postman" has the words of "The dog bit the postman" in their order, and a head took it for
the same. Told as an active one, its words stand where they do in what says the same. What is done or has to be stays as
it is, for the form of its verb is not known; `deeds` sees who does it.
"""

from __future__ import annotations

import re

from policies.cache.semantic.sameness.canonical import MONTHS
from policies.cache.semantic.sameness.clauses.persons import OBJECT_OF, SUBJECT_OF
from policies.cache.semantic.sameness.clauses.verbs import IRREGULAR

_NEVER_DOES = "|".join(MONTHS) + "|monday|tuesday|wednesday|thursday|friday|saturday|sunday|easter|christmas"
_IS_NO_DOER = (
    "end|time|date|deadline|morning|evening|afternoon|night|hour|day|week|month|year|beginning|start|close|half|third|"
    "quarter|fifth|tenth|margin|factor|average|amount|total|way|means|moment|latest|same|first|next|following"
)
_LINKS = r"(?:that|which|who|whom|whose|where|when|while|if|because|and|or|but|not|never|than|as|by)"
_PLACES = r"(?:in|on|at|for|from|to|with|within|after|before|during|until|since|between|under|over|into|about)"
_NAME = rf"(?!(?:{_NEVER_DOES})\b)(?-i:[A-Z])[\w'\u2019&.-]*\w"
_NOUN = rf"(?!(?:{_LINKS}|{_PLACES}|{_IS_NO_DOER})\b)[a-z][\w'\u2019-]*"
_PASSIVE = re.compile(
    rf"(?P<whom>(?:(?!{_LINKS}\b)[^\s,;:?!]+\s){{1,7}}?)"
    rf"(?:was|were|(?P<has>has|have|had) been) (?P<how>\w+ly )?(?P<done>\w+ed|{'|'.join(IRREGULAR)}) by "
    rf"(?P<who>{_NAME}(?: (?:{_NAME}|of|de|von|van))*(?: \d+)?"
    rf"|(?:the|an?|our|your|my|his|her|its|their) {_NOUN}(?: {_NOUN}){{0,3}}|you|us|them|him|her|me)"
    rf"(?P<rest> {_PLACES}\b[^,;:?!]*)?(?P<end>[.!]?)",
    re.IGNORECASE,
)
_BEGINS_SMALL = re.compile(
    r"(?:the|an?|our|your|my|his|her|its|their|th(?:is|at|ese|ose)|all|both|each|every|it)\b", re.I
)


def active(sentence: str) -> str:
    """The sentence with who did it in front, where that is all it says and it has been done; as it is otherwise."""
    found = _PASSIVE.fullmatch(sentence) if " by " in sentence else None
    if found is None:
        return sentence
    whom, who, done = found["whom"].strip(), found["who"], found["done"].lower()
    if _BEGINS_SMALL.match(whom):
        whom = whom[0].lower() + whom[1:]
    whom, who = OBJECT_OF.get(whom.lower(), whom), SUBJECT_OF.get(who.lower(), who)
    does = (
        f"{_has(who, found['has'])} {found['how'] or ''}{done}"
        if found["has"]
        else f"{found['how'] or ''}{_past_of(done)}"
    )
    told = f"{who} {does} {whom}{found['rest'] or ''}{found['end']}"
    return told[0].upper() + told[1:]


def _has(who: str, has: str) -> str:
    """ "have" of whom it was done to may be "has" of who did it."""
    if has.lower() == "had":
        return has
    are_several = who in ("we", "they", "you", "i") or re.fullmatch(r"[a-z].*[^s]s", who) is not None
    return "have" if are_several else "has"


def _past_of(participle: str) -> str:
    return IRREGULAR[participle][0] if participle in IRREGULAR else participle
