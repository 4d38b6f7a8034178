"""An answer in parts that can be compared: its sentences and the items of its lists, without layout and courtesies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from policies.cache.semantic.sameness.canonical import canonical
from policies.cache.semantic.sameness.clauses.voice import active
from policies.cache.semantic.sameness.languages import language_of
from policies.cache.semantic.sameness.polar import ITEM_MARK, stated
from policies.cache.semantic.sameness.tables import with_fields

MAX_CHARS = 4_800
"""Longer answers are not compared."""
MAX_PARTS = 48
_MAX_PART_CHARS = 600
_CODE_BLOCK = re.compile(r"```[^\n`]*\n?(.*?)```", re.DOTALL)
_HEADING = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+(?P<marked>[^.!?:\n]+)|\*\*(?P<bold>[^*.!?:\n]+)\*\*):?[ \t]*$", re.MULTILINE
)
_MARKS = re.compile(r"\*\*|__|`|^\s*#{1,6}\s+|^\s*>\s?", re.MULTILINE)
_ITEM = re.compile(rf"^\s*{ITEM_MARK}\s+(.*)$")
_NO_END = "".join(rf"(?<!\b{short}\.)" for short in ("Dr", "Mr", "Mrs", "Ms", "St", "Jr", "Sr", "Prof", "[A-Z]"))
_SENTENCE_END = re.compile(rf"(?<=[.!?]){_NO_END}[)\"'\u201d]*\s+(?=[^a-z\s])|(?<=[\u3002\uff01\uff1f])")
_ENDS = (".", "!", "?")
_TITLE = ":"
"""What a line ends with that names what follows; marked headings are given it."""
_FIELD = re.compile(r":\s+\S|^\s*\|")
_SHORT_ITEM_WORDS = 5
_ALTERNATIVES = re.compile(
    r"\b(?:ways|options|choices|alternatives|possibilities|methods|either|any (?:one )?of|(?:one|1) of|choose|pick|"
    r"möglichkeiten|optionen|wege|entweder|(?:eines|eine|einer) (?:der|dieser)|façons|moyens|possibilités|choix|"
    r"formas|opciones|maneras|posibilidades|modi|opzioni|possibilità|scelte)\b",
    re.IGNORECASE,
)
"""In what leads over to things of which one is enough: as a sentence they have an "or" between them."""
_ALL_OF_THEM = re.compile(r"\b(?:all|both|each|every|alle|beide|tous|toutes|todos|todas|tutti|tutte)\b", re.IGNORECASE)
_OR = {"en": "or", "de": "oder", "fr": "ou", "es": "o", "it": "o"}
_WORD = re.compile(r"\w+")
_OF_ANOTHER = re.compile(r"(?:it|its|he|his|she|her|they|their|this|that|these|those)\b", re.IGNORECASE)
_MAX_OTHER_WORDS = 4
"""Of two sentences that say the same of two things, one the one thing and one the other."""


class AnswerParts(NamedTuple):
    """An answer's parts in canonical form, in their order. `under`: of each the position of the heading, the item or
    the sentence that says what it speaks of, -1 where none does.
    """

    texts: list[str]
    under: list[int]


def parts_of(text: str) -> AnswerParts | None:
    """None where it is too long or in too many pieces, or says nothing."""
    if len(text) > MAX_CHARS:
        return None
    plain = _CODE_BLOCK.sub(lambda found: found[1], text)
    plain = _HEADING.sub(lambda found: f"{found['marked'] or found['bold']}{_TITLE}", plain)
    collected = _Collected()
    for line in stated(canonical(with_fields(_MARKS.sub("", plain)))).split("\n"):
        collected.add_line(line)
    collected.end()
    texts, under = collected.texts, collected.under
    return AnswerParts(texts, _with_referents(texts, under)) if 0 < len(texts) <= MAX_PARTS else None


def texts_of(text: str) -> list[str]:
    """Of its parts; none where it has none."""
    parts = parts_of(text)
    return parts.texts if parts is not None else []


class _Item(NamedTuple):
    indent: int
    text: str


class _Collected:
    """The parts so far, and what of the last lines is not yet one: a `lead` without an end, and items under it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.under: list[int] = []
        self._heading = -1
        self._is_titled = False
        self._lead = ""
        self._items: list[_Item] = []

    def add_line(self, line: str) -> None:
        """A line of the answer."""
        if not line.strip():
            return
        found = _ITEM.match(line)
        indent = len(line) - len(line.lstrip())
        if found is not None or (self._items and indent > self._items[0].indent):
            self._items.append(_Item(indent, (found[1] if found is not None else line).strip()))
            return
        self.end()
        sentences = _with_answers([each.strip() for each in _SENTENCE_END.split(line) if each and each.strip()])
        self._lead = sentences.pop() if sentences and not sentences[-1].endswith(_ENDS) else ""
        for sentence in sentences:
            self._add(sentence, self._heading)

    def end(self) -> None:
        """What waits is no longer waited with."""
        if self._items:
            self._add_list(self._lead, self._items, self._heading)
        elif self._lead:
            is_title = self._lead.endswith(_TITLE)
            if is_title or not (self._is_titled or _FIELD.search(self._lead)):
                self._heading, self._is_titled = self._add(self._lead.rstrip(_TITLE), -1), is_title
            else:
                self._add(self._lead, self._heading)
        self._lead, self._items = "", []

    def _add(self, text: str, under: int) -> int:
        """Its position. What is longer than an encoder reads is cut into pieces: nothing that follows may go unseen."""
        at = len(self.texts)
        text = active(text)
        pieces = [text[start : start + _MAX_PART_CHARS] for start in range(0, len(text), _MAX_PART_CHARS)]
        self.texts += [piece for piece in pieces if _WORD.search(piece)]
        self.under += [under] * (len(self.texts) - at)
        return at if len(self.texts) > at else under

    def _add_list(self, lead: str, items: Sequence[_Item], under: int) -> None:
        """A list of things under a lead is one sentence; items that are sentences stand alone."""
        top = min(item.indent for item in items)
        begins = [at for at, item in enumerate(items) if item.indent == top or at == 0]
        if lead and len(begins) == len(items) and all(len(item.text.split()) <= _SHORT_ITEM_WORDS for item in items):
            self._add(f"{lead.rstrip(': ')}: {_listed(lead, [item.text.rstrip('.,;') for item in items])}.", under)
            return
        at = self._add(lead, under) if lead else under
        for begin, end in zip(begins, (*begins[1:], len(items)), strict=True):
            if end - begin > 1:
                self._add_list(items[begin].text, items[begin + 1 : end], at)
            else:
                self._add(items[begin].text, at)


def _listed(lead: str, items: Sequence[str]) -> str:
    """As a sentence lists them."""
    if len(items) < 2 or _ALTERNATIVES.search(lead) is None or _ALL_OF_THEM.search(lead) is not None:
        return ", ".join(items)
    return f"{', '.join(items[:-1])} {_OR[language_of(lead)]} {items[-1]}"


def _with_answers(sentences: list[str]) -> list[str]:
    """A question and a few words behind it are one: neither says anything by itself."""
    joined: list[str] = []
    for sentence in sentences:
        if joined and joined[-1].endswith("?") and len(sentence.split()) <= _SHORT_ITEM_WORDS:
            joined[-1] += f" {sentence}"
        else:
            joined.append(sentence)
    return joined


def _with_referents(texts: Sequence[str], under: Sequence[int]) -> list[int]:
    """Where "It costs 5" and "It costs 7" are said of two things, each belongs to the sentence that names its own."""
    referents = list(under)
    named = -1
    for at, text in enumerate(texts):
        if _OF_ANOTHER.match(text) is None:
            named = at
        elif any(_says_like(text, other) for other in texts):
            referents[at] = named
    return referents


def _says_like(text: str, other: str) -> bool:
    if text == other or _OF_ANOTHER.match(other) is None:
        return False
    words, others = ({word.casefold() for word in _WORD.findall(each)} for each in (text, other))
    return len(words ^ others) <= min(_MAX_OTHER_WORDS, len(words & others))
