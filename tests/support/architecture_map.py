"""What docs/architecture.md has from the code: the picture of a stack, from the table of stages, and the map of all
folders, from what their `__init__.py` say of them.

`python -m tests.support.architecture_map` writes both anew.
"""

from __future__ import annotations

import ast

from gateway.assembly.stages import STAGES
from tests.support.docs import ROOT

PAGE = ROOT / "docs" / "architecture.md"
_LAYERS = ("gateway", "policies", "backends", "kernels")
_BEGIN = "| folder | what is in it |\n|---|---|\n"
_END = "\n\n"
_PICTURE_BEGIN = "```text\nHTTP in (gateway) "
_PICTURE_END = "\n```"
_ABOVE = (("HTTP in (gateway)", "read, authenticate, match a route"),)
_BELOW = (
    ("pool", "admission, weights, priorities, breakers, retries, hedges"),
    ("leaf", "openai | anthropic | engine | scripted | simulated | a package's own"),
)


def stack_picture() -> str:
    """A line a stage, each further in than the one above."""
    stages = [*_ABOVE, *((row.name, row.purpose) for row in STAGES), *_BELOW]
    return "\n".join(f"{'  ' * depth + name:<33}{purpose}" for depth, (name, purpose) in enumerate(stages))


def folder_map() -> str:
    """The rows of the table, from the top layer to the bottom one."""
    rows = []
    for layer in _LAYERS:
        for path in sorted((ROOT / layer).rglob("__init__.py"), key=lambda path: path.parent.parts):
            told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            rows.append(f"| `{path.parent.relative_to(ROOT)}/` | {' '.join(told.split())} |")
    return "\n".join(rows)


def with_generated(text: str) -> str:
    """The page with today's picture and table."""
    before, begin, rest = text.partition(_PICTURE_BEGIN)
    _, end, after = rest.partition(_PICTURE_END)
    text = f"{before}```text\n{stack_picture()}{end}{after}"
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return f"{before}{begin}{folder_map()}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_generated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
