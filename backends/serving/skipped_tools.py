"""Tools that are no functions (web searches, shells): no model here can call them, so the call goes on without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def without_foreign_tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The body with the tools that a model may call, and the types of the others, each once.

    A tool without a type is left in its place, to be refused by whoever reads it.
    """
    tools = body.get("tools")
    if not isinstance(tools, list) or all(_is_ours(tool) for tool in tools):
        return body, ()
    skipped = dict.fromkeys(_header_value(tool["type"]) for tool in tools if not _is_ours(tool))
    return {**body, "tools": [tool for tool in tools if _is_ours(tool)]}, tuple(skipped)


def _is_ours(tool: object) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return not isinstance(kind, str) or not kind or kind == "function"


def _header_value(kind: str) -> str:
    """A type as a header may say it."""
    return kind if _KIND.fullmatch(kind) else "other"
