"""Forms of English verbs: which is the past of which, and what all of one have in common."""

from __future__ import annotations

import re

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
IRREGULAR: dict[str, tuple[str, str]] = {
    done: (past, base) for done, past, base in (each.split() for each in _FORMS.split(","))
}
"""By participle: the past, and the form that the dictionary has."""
_BASE_OF = {form: base for done, (past, base) in IRREGULAR.items() for form in (done, past)}
_AGAIN_OR_OVER = re.compile(r"(over|under|re|un|out|mis|fore)(\w+)")
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W_]+")
_ENDING = re.compile(r"(?<=\w\w)(?:ing|ed|es|s|e)$")


def words_in(sentence: str) -> list[str]:
    """In small letters and in their order, numbers whole."""
    return _WORD.findall(sentence.lower())


def stem_of(verb: str) -> str:
    """What its forms begin with, in small letters: "pays", "paid" and "paying" have one; "notified", "notifies" too."""
    verb = verb.lower()
    stem = _ENDING.sub("", _base_of(verb)) or verb
    doubled = len(stem) > 2 and stem[-1] == stem[-2]
    return stem[:-1] if doubled else f"{stem[:-1]}i" if stem.endswith("y") else stem


def _base_of(verb: str) -> str:
    """Of "overwrote" that of "wrote", behind what stands before it."""
    found = _AGAIN_OR_OVER.fullmatch(verb)
    if verb in _BASE_OF or found is None:
        return _BASE_OF.get(verb, verb)
    return found[1] + _BASE_OF.get(found[2], found[2])
