"""Tables in Markdown, a field a cell: "Basic, Price: 5 euros." A row by itself says nothing of what stands above it."""

from __future__ import annotations

import re

_ROW = re.compile(r"[ \t]*\|(?P<cells>[^\n]*)\|[ \t]*")
_RULE = re.compile(r"[ \t]*\|(?:[ \t]*:?-+:?[ \t]*\|)+[ \t]*")
_NOTHING = ("", "-", "\u2013", "\u2014")
_END = ".!?"


def with_fields(text: str) -> str:
    """The text with a line for each cell of its tables but those of the first row and column, which name them."""
    lines = text.split("\n")
    told: list[str] = []
    names: list[str] | None = None
    for at, line in enumerate(lines):
        cells = _cells(line)
        if cells is None:
            names = None
            told.append(line)
        elif names is None:
            # What no rule follows is no table's head.
            is_head = len(cells) > 1 and at + 1 < len(lines) and _RULE.fullmatch(lines[at + 1]) is not None
            names = cells if is_head else None
            if not is_head:
                told.append(line)
        elif _RULE.fullmatch(line) is None:
            told += [_field(cells[0], name, cell) for name, cell in zip(names[1:], cells[1:], strict=False)]
    return "\n".join(told)


def _cells(line: str) -> list[str] | None:
    found = _ROW.fullmatch(line)
    return [cell.strip() for cell in found["cells"].split("|")] if found is not None else None


def _field(row: str, name: str, cell: str) -> str:
    of = ", ".join(each.rstrip(":?") for each in (row, name) if each)
    said = "none" if cell in _NOTHING else cell
    return f"{of}: {said}{'' if said[-1] in _END else '.'}"
