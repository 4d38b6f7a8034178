"""Who does what to whom, in English sentences in the passive voice that name who does it.

"The dog was bitten by the postman" has the words of "The dog bit the postman" in their order, and a head took it for
the same. Told as an active one, where the verb's form is known, its words stand where they do in what says the same;
where it is not, whoever does it there and has it done here is looked for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from policies.cache.semantic.sameness.canonical import MONTHS

_FORMS = """
beaten beat beat, begun began begin, bitten bit bite, blown blew blow, bought bought buy, broken broke break,
brought brought bring, built built build, caught caught catch, chosen chose choose, cut cut cut, done did do,
drawn drew draw, driven drove drive, eaten ate eat, felt felt feel, forgiven forgave forgive,
fought fought fight, forgotten forgot forget, found found find, frozen froze freeze, given gave give,
grown grew grow, heard heard hear, held held hold, hidden hid hide, hit hit hit, hurt hurt hurt,
kept kept keep, known knew know, laid laid lay, led led lead, lent lent lend, lost lost lose, made made make,
met met meet, overseen oversaw oversee, overtaken overtook overtake, overthrown overthrew overthrow,
paid paid pay, put put put, read read read, ridden rode ride, run ran run, said said say, seen saw see,
sent sent send, set set set, shaken shook shake, shot shot shoot, shown showed show, sold sold sell,
spoken spoke speak, stolen stole steal, struck struck strike, sung sang sing, taken took take,
taught taught teach, thought thought think, thrown threw throw, told told tell, torn tore tear,
understood understood understand, undertaken undertook undertake, withdrawn withdrew withdraw, won won win,
worn wore wear, written wrote write
"""
_IRREGULAR: dict[str, tuple[str, str]] = {
    done: (past, base) for done, past, base in (each.split() for each in _FORMS.split(","))
}
"""By participle: the past, and the form that the dictionary has."""
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
    rf"(?:(?P<did>was|were)|(?P<has>has|have|had) been|is|are|(?:will|can|may|must|should|could|might|would|shall) be) "
    rf"(?P<how>\w+ly )?(?P<done>\w+ed|{'|'.join(_IRREGULAR)}) by "
    rf"(?P<who>{_NAME}(?: (?:{_NAME}|of|de|von|van))*(?: \d+)?"
    rf"|(?:the|an?|our|your|my|his|her|its|their) {_NOUN}(?: {_NOUN}){{0,3}}|you|us|them|him|her|me)"
    rf"(?P<rest> {_PLACES}\b[^,;:?!]*)?(?P<end>[.!]?)",
    re.IGNORECASE,
)
_SUBJECTS = {"us": "we", "them": "they", "him": "he", "her": "she", "me": "I"}
_OBJECTS = {"we": "us", "they": "them", "he": "him", "she": "her", "i": "me"}
_BEGINS_SMALL = re.compile(
    r"(?:the|an?|our|your|my|his|her|its|their|th(?:is|at|ese|ose)|all|both|each|every|it)\b", re.I
)
_WORD = re.compile(r"[\w'\u2019-]+")


class _Deed(NamedTuple):
    """Who does what to whom: the last word of either, and what the verb's forms begin with."""

    who: str
    stem: str
    whom: str


def active(sentence: str) -> str:
    """The sentence with who did it in front, where that is all it says and it has been done; as it is otherwise."""
    found = _passive(sentence)
    if found is None or not (found["did"] or found["has"]):
        return sentence
    whom, who, done = found["whom"].strip(), found["who"], found["done"].lower()
    if _BEGINS_SMALL.match(whom):
        whom = whom[0].lower() + whom[1:]
    whom, who = _OBJECTS.get(whom.lower(), whom), _SUBJECTS.get(who.lower(), who)
    does = (
        f"{_has(who, found['has'])} {found['how'] or ''}{done}"
        if found["has"]
        else f"{found['how'] or ''}{_past_of(done)}"
    )
    told = f"{who} {does} {whom}{found['rest'] or ''}{found['end']}"
    return told[0].upper() + told[1:]


def are_reversed(one: str, other: str) -> bool:
    """Whether one of the two is such a sentence, and in the other one it is done by whom it is done to there."""
    return _is_reversed(one, other) or _is_reversed(other, one)


def _is_reversed(passive: str, other: str) -> bool:
    deed = _deed_of(passive)
    if deed is None or _deed_of(other) is not None:
        return False
    words = [word.lower() for word in _WORD.findall(other)]
    does = next((at for at, word in enumerate(words) if word.startswith(deed.stem)), None)
    return does is not None and deed.whom in words[:does] and deed.who in words[does + 1 :]


def _deed_of(sentence: str) -> _Deed | None:
    found = _passive(sentence)
    if found is None:
        return None
    done = found["done"].lower()
    stem = _IRREGULAR[done][1] if done in _IRREGULAR else done.removesuffix("ed").removesuffix("i")
    return _Deed(_last_word(found["who"]), stem, _last_word(found["whom"]))


def _passive(sentence: str) -> re.Match[str] | None:
    return _PASSIVE.fullmatch(sentence) if " by " in sentence else None


def _has(who: str, has: str) -> str:
    """ "have" of whom it was done to may be "has" of who did it."""
    if has.lower() == "had":
        return has
    are_several = who in ("we", "they", "you", "I") or re.fullmatch(r"[a-z].*[^s]s", who) is not None
    return "have" if are_several else "has"


def _past_of(participle: str) -> str:
    return _IRREGULAR[participle][0] if participle in _IRREGULAR else participle


def _last_word(text: str) -> str:
    words: list[str] = _WORD.findall(text.lower())
    return words[-1] if words else text
