"""What a stored answer says: the text that is compared and counted, of answers fit for a question in other words."""

from __future__ import annotations

import msgspec

from backends.json_errors import NOT_JSON
from backends.operations import Operation
from policies.cache.entry import Entry
from policies.cache.replay.render import whole_body


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[object] | None = None
    function_call: object = None
    audio: object = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_DECODE = msgspec.json.Decoder(_Answer).decode


def text_of(entry: Entry) -> str | None:
    """The text of a chat's answer; None where it is not one finished text: cut off, several, empty, or a tool call."""
    body = whole_body(entry, Operation.CHAT)
    if body is None:
        return None
    try:
        choices = _DECODE(body).choices
    except NOT_JSON:
        return None
    if len(choices) != 1 or choices[0].finish_reason != "stop":
        return None
    message = choices[0].message
    if message.tool_calls or message.function_call is not None or message.audio is not None:
        return None
    text = message.content or message.refusal
    return text if text and not text.isspace() else None
