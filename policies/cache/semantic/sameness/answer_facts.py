"""What must not differ between answers that say the same, as far as text tells it: facts, and who is what to whom.

Word lists are of English and, for negation, of a few languages more; of others the numbers, names and the order of
words say something all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set

import msgspec

from policies.cache.semantic.sameness.number_words import in_digits, numbers_of

_SPACE = re.compile(r"\s+")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
# Looked for where a word begins alone: or else a long word of an upstream's would be gone through again at each letter.
_LINK = re.compile(r"https?://\S+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+\.[\w.]+")
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ENDS = (".", "!", "?")
_MARKS = re.compile(r"[*_#>|]+|^\s*(?:[-•]|\d+[.)])\s+", re.MULTILINE)
"""Of layout: emphasis, headings, bullets."""
NEGATION = re.compile(
    r"\b(?:not|no|never|none|neither|nor|cannot|impossible|unable|prohibited|forbidden"
    r"|nicht|kein\w*|nie|niemals|weder|unmöglich|verboten|ne|interdite?s?"
    r"|nunca|jamás|ningun[oa]?s?|ningún|imposible|prohibid[oa]s?|não|nem|non)\b"
    r"|n['\u2019]t\b|\bn['\u2019](?=[aeiouyhàâéèêëîïôöùûü])",
    re.IGNORECASE,
)
_WORD_OR_COMMA = re.compile(r"\w+|[,;]")
_BETWEEN_ITEMS = frozenset({",", ";", "and", "or", "und", "oder", "et", "ou", "y", "o"})
_MAX_NAMES_SHARE = 0.3
"""Of words within sentences: where more have capitals, as German nouns do, capitals are no sign of a name."""


Sentences = dict[tuple[str, ...], list[str]]
"""Sentences in lower case by their words in alphabetical order."""


class Course(msgspec.Struct, frozen=True):
    """How a text runs: what has to be known where another follows it."""

    are_negated: tuple[bool, ...]
    """Its sentences, whether each says no."""
    first: str
    """Its first word."""
    is_open: bool
    """Whether its last sentence goes on."""
    capitals: tuple[str, ...]
    """Words within sentences that have one."""
    num_within: int


class AnswerFacts(msgspec.Struct, frozen=True):
    """Of one answer. `words` are all of it, in lower case."""

    code: Counter[str]
    links: Counter[str]
    numbers: frozenset[str]
    num_negated: int
    """Sentences that say no."""
    names: frozenset[str]
    words: frozenset[str]
    course: Course


def facts_of_all(texts: Sequence[AnswerFacts]) -> AnswerFacts:
    """Of texts in a row, in which a sentence may go on from one to the next."""
    code, links = Counter[str](), Counter[str]()
    for text in texts:
        code.update(text.code)
        links.update(text.links)
    course = _in_a_row([text.course for text in texts])
    return AnswerFacts(
        code,
        links,
        frozenset().union(*(text.numbers for text in texts)),
        sum(course.are_negated),
        _names(course),
        frozenset().union(*(text.words for text in texts)),
        course,
    )


def facts_of(text: str) -> AnswerFacts:
    """What a text says that can be read off it."""
    code = Counter(_SPACE.sub(" ", block).strip("` ") for block in _CODE.findall(text))
    prose = _MARKS.sub(" ", _CODE.sub(" ", text))
    links = Counter(_LINK.findall(prose))
    prose = in_digits(_LINK.sub(" ", prose))
    course = _course_of(prose)
    return AnswerFacts(
        code,
        links,
        numbers_of(prose),
        sum(course.are_negated),
        _names(course),
        frozenset(_WORD.findall(prose.casefold())),
        course,
    )


def sentences_of(text: str) -> Sentences:
    """Of a text, as `is_reordered` reads it."""
    sentences: Sentences = {}
    for sentence in _SENTENCE_END.split(_MARKS.sub(" ", text)):
        plain = sentence.casefold().strip(" .!?:;")
        bag = tuple(sorted(_WORD.findall(plain)))
        if bag:
            sentences.setdefault(bag, []).append(plain)
    return sentences


def is_reordered(ones: Sentences, others: Sentences) -> bool:
    """Whether a sentence has the same words as one of the other text and others stand where they did: who has beaten
    whom. Sentences, items of a list, and one part of a sentence may stand elsewhere.
    """
    shared = ones.keys() & others.keys()
    if any(not any(_is_order_alike(one, other) for one in ones[bag] for other in others[bag]) for bag in shared):
        return True
    # Where sentences end may be told otherwise, or mistaken.
    if _num_words(ones, shared) != _num_words(others, shared):
        return False
    rest, other_rest = _rest(ones, shared), _rest(others, shared)
    return sorted(_WORD.findall(rest)) == sorted(_WORD.findall(other_rest)) and not _is_order_alike(rest, other_rest)


def _course_of(prose: str) -> Course:
    sentences = _SENTENCE_END.split(prose)
    words = [_WORD.findall(sentence) for sentence in sentences]
    return Course(
        tuple(NEGATION.search(sentence) is not None for sentence in sentences),
        words[0][0] if words[0] else "",
        not prose.rstrip().endswith(_ENDS),
        tuple(word for sentence in words for word in sentence[1:] if _is_capital(word)),
        sum(max(len(sentence) - 1, 0) for sentence in words),
    )


def _in_a_row(courses: Sequence[Course]) -> Course:
    are_negated: list[bool] = []
    capitals: list[str] = []
    num_within = 0
    is_open = False
    for course in courses:
        negated = course.are_negated
        if is_open:
            are_negated[-1] |= negated[0]
            negated = negated[1:]
            num_within += bool(course.first)
            if _is_capital(course.first):
                capitals.append(course.first)
        are_negated += negated
        capitals += course.capitals
        num_within += course.num_within
        is_open = course.is_open
    return Course(tuple(are_negated), courses[0].first, is_open, tuple(capitals), num_within)


def _is_capital(word: str) -> bool:
    return word[:1].isupper() and word != "I"


def _names(course: Course) -> frozenset[str]:
    if len(course.capitals) > max(3, _MAX_NAMES_SHARE * course.num_within):
        return frozenset()
    return frozenset(word.casefold() for word in course.capitals)


def _num_words(sentences: Sentences, without: Set[tuple[str, ...]]) -> int:
    return sum(len(bag) * len(same) for bag, same in sentences.items() if bag not in without)


def _rest(sentences: Sentences, without: Set[tuple[str, ...]]) -> str:
    return " ".join(sentence for bag, same in sentences.items() if bag not in without for sentence in same)


def _is_order_alike(one: str, other: str) -> bool:
    left, right = _WORD_OR_COMMA.findall(one), _WORD_OR_COMMA.findall(other)
    while left and right and left[0] == right[0]:
        del left[0], right[0]
    while left and right and left[-1] == right[-1]:
        del left[-1], right[-1]
    if sorted(_items(left)) == sorted(_items(right)):
        return True
    # One part that stands elsewhere makes the rest a rotation.
    words, turned = (f" {' '.join(token for token in tokens if token not in ',;')} " for tokens in (left, right))
    return len(words) == len(turned) and turned in words + words[1:]


def _items(tokens: list[str]) -> list[tuple[str, ...]]:
    """Of an enumeration; all of it is one where it is none."""
    items: list[list[str]] = [[]]
    for token in tokens:
        if token in _BETWEEN_ITEMS:
            items.append([])
        else:
            items[-1].append(token)
    return [tuple(item) for item in items if item]
