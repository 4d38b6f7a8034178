"""What an answer will probably repeat, by the call alone: its own prediction, a file in it, the last answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from backends.drafts.prediction import FIELD, PredictedBy, text_of

_LEAST_CHARS = 64
"""Of less there is nothing to gain."""
_MOST_CHARS = 256 * 1024
_MOST_MESSAGES = 8
"""Looked at, from the last one on: what is further back is not what is being worked on."""
_FENCED = re.compile(r"^(`{3,}|~{3,})[^\n`]*\n(.*?)^\1[ \t]*$", re.DOTALL | re.MULTILINE)


def own_prediction(body: Mapping[str, Any]) -> str:
    """The text of the caller's own `prediction`; "" where there is none."""
    given = body.get(FIELD)
    return text_of(given.get("content")) if isinstance(given, Mapping) else ""


def found_text(body: Mapping[str, Any]) -> tuple[PredictedBy, str] | None:
    """The latest text that is long enough to be worked on: a fenced block of the caller's, what a tool has brought, or
    the last answer. None where there is none.

    Where tools may be called, a file is written as a string of a call's JSON, and so it is told.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    for message in reversed(messages[-_MOST_MESSAGES:]):
        if not isinstance(message, Mapping):
            return None
        text = text_of(message.get("content"))
        match message.get("role"):
            case "assistant" if len(text) >= _LEAST_CHARS and message is not messages[-1]:
                return "turn", text[:_MOST_CHARS]
            case "tool" | "function" if len(text) >= _LEAST_CHARS:
                return "file", _as_written(text, body)
            case "user" if len(block := _longest_block(text)) >= _LEAST_CHARS:
                return "file", _as_written(block, body)
    return None


def _longest_block(text: str) -> str:
    return max((found[2] for found in _FENCED.finditer(text[:_MOST_CHARS])), key=len, default="")


def _as_written(text: str, body: Mapping[str, Any]) -> str:
    text = text[:_MOST_CHARS]
    may_call = bool(body.get("tools") or body.get("functions")) and body.get("tool_choice") != "none"
    return json.dumps(text, ensure_ascii=False)[1:-1] if may_call else text
