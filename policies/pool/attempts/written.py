"""About how many tokens a whole answer has, by the text in it: for upstreams that do not tell.

What is around the text is not written by a model, and of a short answer, or one with log probabilities, it is most.
"""

from __future__ import annotations

import msgspec

from backends.json_errors import NOT_JSON
from backends.prompts.text import BYTES_PER_TOKEN

_MAX_READ_BYTES = 256 * 1024
"""Of a longer answer all bytes count: a lie of that many small parts would hold others up while it is read."""


class _Part(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None


class _Item(msgspec.Struct):
    """Of a response: a message, what was thought, or the call of a tool."""

    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    name: str | None = None
    arguments: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    output: list[_Item] | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def written_tokens(body: bytes) -> int:
    """Of a chat, a completion or a response. Where no text is found in it, or it cannot be read, all bytes count."""
    num_bytes = 0
    if len(body) <= _MAX_READ_BYTES:
        try:
            answer = _decode(body)
        except NOT_JSON:
            pass
        else:
            texts = [text for choice in answer.choices or () for text in _of_choice(choice)]
            texts += [text for item in answer.output or () for text in _of_item(item)]
            num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts if text)
    # A few letters are a token too.
    return max(1, num_bytes // BYTES_PER_TOKEN) if num_bytes else len(body) // BYTES_PER_TOKEN


def _of_choice(choice: _Choice) -> list[str | None]:
    message = choice.message
    if message is None:
        return [choice.text]
    texts = [message.refusal, message.reasoning_content or message.reasoning]
    for call in message.tool_calls or ():
        texts += (call.function.name, call.function.arguments)
    content = message.content
    return [*texts, *([content] if isinstance(content, str) else _of_parts(content))]


def _of_item(item: _Item) -> list[str | None]:
    return [item.name, item.arguments, *_of_parts(item.content), *_of_parts(item.summary)]


def _of_parts(parts: list[_Part] | None) -> list[str | None]:
    return [text for part in parts or () for text in (part.text, part.refusal)]
