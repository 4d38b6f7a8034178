"""What can be said of two answers for sure, from their form: equal but for form, or nothing that a head can read.

Code, tables and JSON are the same or they are not known to be: where only their tokens differ, nobody trained on prose
can tell what that means. JSON that differs in more than texts is different.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from policies.cache.semantic.sameness.courtesies import without_courtesies
from policies.cache.semantic.sameness.parts import MAX_CHARS

SURE = 16.0
"""Log odds of what is certain."""
_MAX_UNREAD_SHARE = 0.1
_LAST_LATIN = 0x24F
_MAX_KEPT_ANSWERS = 256
"""Of up to 4,800 characters each: a new answer is held against several stored ones."""
_CODE_TOKEN = re.compile(r"\w+|[^\w\s]")
_FENCED = re.compile(r"\A\s*```[^\n]*\n(.*?)```\s*\Z", re.DOTALL)
_TABLE_ROW = re.compile(r"^\s*\|.*\|\s*$")
_TABLE_LINE = re.compile(r"^[\s|:-]+$")


class Unreadable(Exception):
    """These two cannot be compared."""


def for_sure(left: str, right: str) -> float | None:
    """Log odds where the form alone decides; None where the head has to read. Raises: Unreadable."""
    if left == right:
        return SURE
    if max(len(left), len(right)) > MAX_CHARS or not (left.strip() and right.strip()):
        raise Unreadable
    for read in (_json, _code, _table):
        forms = read(left), read(right)
        if forms != (None, None):
            return _of_forms(*forms)
    one, other = _prose_of(left), _prose_of(right)
    if one.plain == other.plain:
        return SURE
    if max(one.unread_share, other.unread_share) > _MAX_UNREAD_SHARE:
        raise Unreadable
    return None


class _Prose(NamedTuple):
    """`plain`: without courtesies; `unread_share` as the function tells it."""

    plain: str
    unread_share: float


@lru_cache(maxsize=_MAX_KEPT_ANSWERS)
def _prose_of(text: str) -> _Prose:
    return _Prose(without_courtesies(text), unread_share(text))


def unread_share(text: str) -> float:
    """How much of a text an encoder of Latin script does not read, 0..1: letters of others, and what is no text."""
    solid = "".join(text.split())
    if solid.isprintable() and max(solid, default="") <= chr(_LAST_LATIN):
        # So nearly every text is, and to look at each letter took a tenth of a comparison.
        return 0.0
    seen = [char for char in text if char.isalpha() or not (char.isprintable() or char.isspace()) or char == "\ufffd"]
    unread = sum(
        not char.isalpha() or (ord(char) > _LAST_LATIN and "LATIN" not in unicodedata.name(char, "")) for char in seen
    )
    return unread / len(seen) if seen else 0.0


def _of_forms(one: object | None, other: object | None) -> float:
    if one is None or other is None:
        raise Unreadable
    if isinstance(one, _Json) and isinstance(other, _Json) and list(_bones(one.value)) != list(_bones(other.value)):
        return -SURE
    if one == other:
        return SURE
    raise Unreadable


class _Json(msgspec.Struct, frozen=True):
    value: object


def _json(text: str) -> _Json | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return _Json(value) if isinstance(value, dict | list) else None


def _bones(value: object) -> Iterator[object]:
    """All of it but its texts, in an order that does not depend on how it was written."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield name
            yield from _bones(value[name])
    elif isinstance(value, list):
        yield len(value)
        for each in value:
            yield from _bones(each)
    else:
        yield None if isinstance(value, str) else (type(value).__name__, value)


def _code(text: str) -> list[str] | None:
    """Of a text that is one block of code: its tokens, lines told apart by how far they are indented."""
    found = _FENCED.match(text)
    if found is None:
        return None
    lines = [line for line in found[1].splitlines() if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return [
        token for line in lines for token in (str(len(line) - len(line.lstrip()) - margin), *_CODE_TOKEN.findall(line))
    ]


def _table(text: str) -> list[list[str]] | None:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not all(_TABLE_ROW.match(line) for line in lines):
        return None
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if not _TABLE_LINE.match(line)
    ]
