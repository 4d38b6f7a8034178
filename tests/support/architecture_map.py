"""The map in docs/architecture.md: every folder of the tree, with what its `__init__.py` says of it.

`python -m tests.support.architecture_map` writes it anew.
"""

from __future__ import annotations

import ast

from tests.support.docs import ROOT

PAGE = ROOT / "docs" / "architecture.md"
_LAYERS = ("gateway", "policies", "backends", "kernels")
_BEGIN = "| folder | what is in it |\n|---|---|\n"
_END = "\n\n"


def folder_map() -> str:
    """The rows of the table, from the top layer to the bottom one."""
    rows = []
    for layer in _LAYERS:
        for path in sorted((ROOT / layer).rglob("__init__.py"), key=lambda path: path.parent.parts):
            told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            rows.append(f"| `{path.parent.relative_to(ROOT)}/` | {' '.join(told.split())} |")
    return "\n".join(rows)


def with_map(text: str) -> str:
    """The page with today's table."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return f"{before}{begin}{folder_map()}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
