"""A chat's messages and tools in the words of chat templates: text only, arguments as objects, no `developer` role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jiter

from backends.drafts.prediction import Prediction
from backends.errors import InvalidRequest
from backends.serving.fields import ChatFields, Message, NamedTool, Part, PredictedContent

_MOST_TOKEN_CHARS = 16
"""Of a text, for each token that there is room for; only white space and rules come to more."""


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as a chat template takes them.

    Raises: InvalidRequest for parts that are not text.
    """
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def tools_in_use(fields: ChatFields, written: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools, as the client has `written` them, that the model is told of; None where it may not call any.

    Raises: InvalidRequest where `tool_choice` asks for what is not there.
    """
    tools, choice = fields.tools, fields.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice asks for a tool, but tools is empty", param="tool_choice")
        return None
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if all(tool.function.name != name for tool in tools):
            raise InvalidRequest(f'tool_choice names "{name}", which is not among the tools', param="tool_choice")
    if choice == "none":
        return None
    return list(written or ())


def content_text(content: str | Sequence[Part] | None, place: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a content, its parts joined; `kinds` are the types of a part that is text.

    Raises: InvalidRequest for a part that is not; `place` says where the content stands.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        if part.type == "refusal" and part.refusal is not None:
            texts.append(part.refusal)
        elif part.type in kinds and part.text is not None:
            texts.append(part.text)
        else:
            where = f"{place}[{index}]"
            raise InvalidRequest(f'{where} is of type "{part.type}"; this model takes text only', param=where)
    return "".join(texts)


def _template_message(message: Message, place: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    content = message.content if message.content is not None else message.refusal
    made: dict[str, Any] = {"role": role, "content": content_text(content, f"{place}.content")}
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


def _arguments(arguments: str | dict[str, Any]) -> object:
    """Templates write arguments as JSON by themselves, so text that is JSON would be quoted twice."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return jiter.from_json(arguments.encode(), allow_inf_nan=False)
    except ValueError:
        return arguments


def predicted_text(own: PredictedContent | None, given: Prediction | None, max_tokens: int) -> str:
    """What an answer will probably repeat, by its caller or else by the route, as far as there is room for it.

    Raises: InvalidRequest.
    """
    likely = content_text(own.content, "prediction.content") if own is not None else given.text if given else ""
    return likely[: max_tokens * _MOST_TOKEN_CHARS]
