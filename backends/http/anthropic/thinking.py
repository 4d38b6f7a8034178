"""What a model has thought, with its signature, on the way to the client and back.

The Messages API wants it again, unchanged, with the results of the tools that it was thought for. Clients that send an
assistant's message back as they got it (OpenAI's own among them) do so with `thinking_blocks`, a list beside the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from backends.errors import InvalidRequest
from backends.http.anthropic.fields import shown, typed

FIELD = "thinking_blocks"
_MAX_CHARS = 4 * 1024**2
"""No model thinks longer; of what a stream says beyond nothing is held."""


class Thought(msgspec.Struct):
    """A block of an answer while its parts come in."""

    type: str
    signature: str = ""
    data: str = ""
    parts: list[str] = []
    num_chars: int = 0

    def add(self, thinking: str, signature: str) -> None:
        """What one delta brings."""
        self.num_chars += len(thinking)
        if self.num_chars <= _MAX_CHARS:
            self.parts.append(thinking)
        # It comes in one piece.
        self.signature = signature or self.signature

    def block(self) -> dict[str, str] | None:
        """As it is to come back; None where the Messages API would not take it."""
        if self.type == "redacted_thinking":
            return {"type": self.type, "data": self.data} if self.data else None
        if not self.signature or self.num_chars > _MAX_CHARS:
            return None
        return {"type": self.type, "thinking": "".join(self.parts), "signature": self.signature}


def told_thoughts(thoughts: Iterable[Thought]) -> list[dict[str, str]]:
    """Those of a whole answer that are to come back."""
    return [block for thought in thoughts if (block := thought.block()) is not None]


def read_thinking(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The blocks that an assistant's message brings back; what has no signature is another server's, and left out.

    Raises: InvalidRequest, naming the block.
    """
    blocks: list[dict[str, Any]] = []
    for index, item in enumerate(typed(message.get(FIELD) or [], list, f"{where}.{FIELD}")):
        place = f"{where}.{FIELD}[{index}]"
        block = typed(item, dict, place)
        match block.get("type"):
            case "thinking":
                if block.get("signature"):
                    names = ("thinking", "signature")
                    blocks.append({"type": "thinking", **{name: _text(block, name, place) for name in names}})
            case "redacted_thinking":
                blocks.append({"type": "redacted_thinking", "data": _text(block, "data", place)})
            case kind:
                raise InvalidRequest(
                    f"{place}.type is {shown(kind)}; taken here: thinking, redacted_thinking", param=f"{place}.type"
                )
    return blocks


def _text(block: Mapping[str, Any], name: str, place: str) -> str:
    return typed(block.get(name), str, f"{place}.{name}")
