"""What was written by hand as a whole: sayings, a fact each, and answers of several facts, each in three wordings of
different form, with three things that are nearly the same and are not (JSON lines); and lines that say nothing of any
matter. Own writing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from policies.cache.semantic.sameness.training.pairs import Meanings

_HERE = Path(__file__).parent


class _Line(msgspec.Struct, frozen=True):
    say: list[str]
    others: list[str] = msgspec.field(name="not")


def twentieth(text: str) -> int:
    """Of all texts and names of kinds, each in the same one for good: what is held out stays so."""
    return zlib.crc32(text.encode()) % 20


def sayings(places: range) -> Sequence[Meanings]:
    """Those whose `twentieth` is among these."""
    return _within("sayings", places)


def written_answers(places: range) -> Sequence[Meanings]:
    """Of several facts each, in prose, lists, tables, questions and answers."""
    return _within("answers", places)


@cache
def wrapping() -> list[str]:
    """Greetings, offers of help, general advice, headings that name nothing."""
    return (_HERE / "wrapping.txt").read_text(encoding="utf-8").splitlines()


def _within(folder: str, places: range) -> list[Meanings]:
    return [meanings for meanings in _read(folder) if twentieth(meanings[0][0]) in places]


@cache
def _read(folder: str) -> list[Meanings]:
    lines = [
        msgspec.json.decode(line, type=_Line)
        for path in sorted((_HERE / folder).glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    return [[line.say, *([other] for other in line.others)] for line in lines]
