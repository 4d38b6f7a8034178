"""Best effort: an answer as one text that another server may go on behind, and how the rest is told as one with it.

What is told is only what stands in the events. Nothing is compared or cut at the seam: a server that says a word again
is heard twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Call
from backends.sse import DONE, encode_event, event_data

_SILENT = frozenset({"role", "content"})
_MAX_CHARS = 1024**2
"""A longer answer is not kept for going on."""


def can_be_text(call: Call) -> bool:
    """Whether an answer to this call may be one text and nothing besides, whose beginning a server could be handed."""
    body = call.body or {}
    form = body.get("response_format")
    if body.get("logprobs") or body.get("prompt_logprobs") or (form and _type_of(form) != "text"):
        return False
    if call.operation is Operation.COMPLETION:
        return isinstance(body.get("prompt"), str) and not body.get("echo") and not body.get("suffix")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    last = messages[-1]
    return isinstance(last, dict) and last.get("role") != "assistant" and not body.get("audio")


def _type_of(form: Any) -> Any:
    return form.get("type") if isinstance(form, Mapping) else None


class PassedText:
    """What of an answer was passed on, as one text; `is_whole_story` until something was that is none."""

    __slots__ = ("_head", "_num_chars", "_operation", "_texts", "is_whole_story", "num_pieces")

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._texts: list[str] = []
        self._head: dict[str, Any] = {}
        self._num_chars = 0
        self.num_pieces = 0
        self.is_whole_story = True

    @property
    def text(self) -> str:
        """What was said so far; nothing where that cannot be told as a text."""
        return "".join(self._texts) if self.is_whole_story else ""

    def read(self, event: bytes) -> None:
        """An event that is passed on."""
        if self._head and not self.is_whole_story:
            return
        data = event_data(event)
        if data is None or data == DONE:
            return
        chunk = _decoded(data)
        if chunk is None:
            self.is_whole_story = False
            return
        if not self._head:
            self._head = {name: chunk[name] for name in ("id", "created", "model") if name in chunk}
        for choice in _choices(chunk):
            self._say(choice)

    def retold(self, event: bytes) -> bytes:
        """An event of another server's as one of the same answer: under its head, and without the role again."""
        data = event_data(event)
        if data is None or data == DONE:
            return event
        chunk = _decoded(data)
        if chunk is None:
            return event
        chunk.update(self._head)
        for choice in _choices(chunk):
            delta = choice.get("delta")
            if isinstance(delta, dict) and delta.pop("role", None) and not _says(choice, delta):
                return b""
        return encode_event(msgspec.json.encode(chunk))

    def _say(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        if self._operation is Operation.COMPLETION:
            delta = {"content": choice.get("text")}
        if not self.is_whole_story or not isinstance(delta, dict) or choice.get("finish_reason"):
            self.is_whole_story = False
            return
        content = delta.get("content") or ""
        if not isinstance(content, str) or any(value for name, value in delta.items() if name not in _SILENT):
            self.is_whole_story = False
        elif content:
            self._texts.append(content)
            self.num_pieces += 1
            self._num_chars += len(content)
            self.is_whole_story &= self._num_chars <= _MAX_CHARS
        if not self.is_whole_story:
            self._texts.clear()


def _says(choice: Mapping[str, Any], delta: Mapping[str, Any]) -> bool:
    return bool(choice.get("finish_reason")) or any(delta.values())


def _choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        chunk = msgspec.json.decode(data)
    except NOT_JSON:
        return None
    return chunk if isinstance(chunk, dict) else None
