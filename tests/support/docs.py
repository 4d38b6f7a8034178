"""The documentation as data, for the tests that hold it to the code: pages, code blocks, tables, headings, links."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from policies.policy_file.locate import read_document
from policies.schema import Policy, RoutePolicy

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SMALLEST: dict[str, Any] = {
    "version": 1,
    "backends": {"answers": {"type": "scripted"}},
    "routes": [{"name": "all", "match": {"models": ["*"]}, "backends": [{"ref": "answers"}]}],
}


class Block(NamedTuple):
    """A fenced block, and where it stands."""

    place: str
    text: str


def pages() -> list[Path]:
    """Every page that people read."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")]


def page(name: str) -> str:
    """The text of a page, by its path below the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(*languages: str) -> list[Block]:
    """Every fenced block in one of these languages."""
    found = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match[1] in languages:
                line = text.count("\n", 0, match.start()) + 2
                found.append(Block(f"{path.relative_to(ROOT)}:{line}", match[2]))
    return found


def code_spans() -> list[Block]:
    """Every piece of code within a line of text."""
    return [
        Block(f"{path.relative_to(ROOT)}:{number}", span)
        for path in pages()
        for number, line in enumerate(_FENCE.sub(_blanked, path.read_text(encoding="utf-8")).splitlines(), 1)
        for span in _CODE_SPAN.findall(line)
    ]


def links() -> list[tuple[Path, str]]:
    """Every link that does not leave the repository, with the page it is on."""
    return [
        (path, target)
        for path in pages()
        for target in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))
        if "://" not in target
    ]


def anchors(path: Path) -> set[str]:
    """What a link may name within a page, as GitHub makes it of the headings."""
    titles = re.findall(r"^#+ (.*)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-") for title in titles}


def table(name: str, first: str) -> list[list[str]]:
    """The cells of the table on a page whose first column is called `first`, without its head."""
    lines = page(name).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names(cell: str) -> list[str]:
    """What stands as code in a cell."""
    return _CODE_SPAN.findall(cell)


def whole_policy(text: str) -> str:
    """An example as a whole policy file: what it leaves out is filled in, so that an excerpt can be loaded too."""
    data = read_document(text.encode()).data
    assert isinstance(data, dict), "an example of a policy file is a mapping"
    if "version" in data:
        return text
    if set(data) <= set(Policy.model_fields):
        return json.dumps({**_SMALLEST, **data, "backends": {**_SMALLEST["backends"], **data.get("backends", {})}})
    assert set(data) <= set(RoutePolicy.model_fields), f"neither of a file nor of a route: {', '.join(data)}"
    return json.dumps({**_SMALLEST, "routes": [{**_SMALLEST["routes"][0], **data}]})


def _blanked(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")
