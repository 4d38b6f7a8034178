"""An answer in parts that can be compared: its sentences and the items of its lists, without layout and courtesies."""

from __future__ import annotations

import re

from policies.cache.semantic.sameness.canonical import canonical

MAX_CHARS = 4_800
"""Longer answers are not compared."""
MAX_PARTS = 48
_MAX_PART_CHARS = 600
_CODE_BLOCK = re.compile(r"```[^\n`]*\n?(.*?)```", re.DOTALL)
_MARKS = re.compile(r"\*\*|__|`|^\s*#{1,6}\s+|^\s*>\s?", re.MULTILINE)
_ITEM = re.compile(r"^\s*(?:[-*•+]|\d{1,2}[.)])\s+(.*)$")
_NO_END = "".join(rf"(?<!\b{short}\.)" for short in ("Dr", "Mr", "Mrs", "Ms", "St", "Jr", "Sr", "Prof", "[A-Z]"))
_SENTENCE_END = re.compile(rf"(?<=[.!?]){_NO_END}[)\"'\u201d]*\s+(?=[^a-z\s])|(?<=[\u3002\uff01\uff1f])")
_ENDS = (".", "!", "?")
_SHORT_ITEM_WORDS = 5
_WORD = re.compile(r"\w")


def parts_of(text: str) -> list[str] | None:
    """Its parts in canonical form, in their order; None where it is too long or in too many pieces, or says nothing."""
    if len(text) > MAX_CHARS:
        return None
    plain = canonical(_MARKS.sub("", _CODE_BLOCK.sub(lambda found: found[1], text)))
    parts: list[str] = []
    lead = ""
    items: list[str] = []
    for line in (*plain.split("\n"), ""):
        found = _ITEM.match(line)
        if found is not None:
            items.append(found[1].strip())
            continue
        if items:
            parts += _joined(lead, items)
            lead, items = "", []
        if not line.strip():
            continue
        if lead:
            parts.append(lead)
            lead = ""
        sentences = [each.strip() for each in _SENTENCE_END.split(line) if each and each.strip()]
        if sentences and not sentences[-1].endswith(_ENDS):
            lead = sentences.pop()
        parts += sentences
    if lead:
        parts.append(lead)
    # What is longer than an encoder reads is cut into pieces: nothing that follows may go unseen.
    pieces = [part[at : at + _MAX_PART_CHARS] for part in parts for at in range(0, len(part), _MAX_PART_CHARS)]
    parts = [piece for piece in pieces if _WORD.search(piece)]
    return parts if 0 < len(parts) <= MAX_PARTS else None


def _joined(lead: str, items: list[str]) -> list[str]:
    """A list of things under a lead is one sentence; items that are sentences stand alone."""
    if lead and all(len(item.split()) <= _SHORT_ITEM_WORDS for item in items):
        return [f"{lead.rstrip(': ')}: {', '.join(item.rstrip('.,;') for item in items)}."]
    return [lead, *items] if lead else items
