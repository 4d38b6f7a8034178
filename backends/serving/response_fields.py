"""The body of a response, OpenAI's newer API: read, and said in the words of a chat completion.

Nothing is kept here from one call to the next, so what refers to an earlier answer is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.errors import InvalidRequest
from backends.serving.fields import (
    REFUSED_SAMPLING,
    Alternatives,
    CalledFunction,
    ChatFields,
    Function,
    JSONSchema,
    Message,
    NamedFunction,
    NamedTool,
    OfferedTool,
    Part,
    ResponseFormat,
    SamplingFields,
    TemplateVariables,
    Text,
    ToolCall,
    convert,
    read_fields,
)
from backends.serving.messages import content_text

_LOGPROBS = "message.output_text.logprobs"
_KEPT = "answers are not kept here"
_REFUSED = {
    **REFUSED_SAMPLING,
    "previous_response_id": f"{_KEPT}; send the whole conversation as input",
    "conversation": f"{_KEPT}; send the whole conversation as input",
    "store": f"{_KEPT}; give false, or leave it away",
    "background": f"{_KEPT}, so one cannot be fetched later",
    "prompt": "prompts are not kept here; send its text as instructions or input",
    "context_management": "the input is never shortened here",
    "moderation": "nothing is moderated here",
    "messages": "a response takes input",
    "max_tokens": "a response takes max_output_tokens",
    "response_format": "a response takes text.format",
    "n": "a response is one answer",
}
_TEXT_PARTS = ("input_text", "output_text", "text")


class TextFormat(msgspec.Struct):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | bool | None = None


class TextOptions(msgspec.Struct):
    """`text`."""

    format: TextFormat | None = None


class FunctionChoice(msgspec.Struct):
    """A `tool_choice` that names its function."""

    type: Literal["function"]
    name: str


class ResponseFields(SamplingFields, kw_only=True):
    """A response's body."""

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Alternatives | None = None
    chat_template_kwargs: TemplateVariables | None = None


class _MessageItem(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]


class _CallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: str


class _OutputItem(msgspec.Struct):
    call_id: str
    output: str | list[Part]


class _FunctionTool(msgspec.Struct):
    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None


def read_response(body: Mapping[str, Any] | None) -> tuple[ResponseFields, ChatFields]:
    """The fields of a body, and the chat completion that asks for the same.

    Raises: InvalidRequest, its `param` naming the field.
    """
    fields = read_fields(body, ResponseFields, _REFUSED)
    choice = fields.tool_choice
    chat = ChatFields(
        **{name: getattr(fields, name) for name in SamplingFields.__struct_fields__ if name != "response_format"},
        response_format=_format(fields.text),
        messages=_messages(fields),
        max_completion_tokens=fields.max_output_tokens,
        logprobs=_LOGPROBS in (fields.include or ()),
        top_logprobs=fields.top_logprobs,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools or ())],
        tool_choice=NamedTool("function", NamedFunction(choice.name)) if isinstance(choice, FunctionChoice) else choice,
        parallel_tool_calls=fields.parallel_tool_calls,
        chat_template_kwargs=fields.chat_template_kwargs,
    )
    return fields, chat


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Functions as a chat completion names them, and so the templates of models."""
    return [
        {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
        for tool in tools
    ]


def echoed(fields: ResponseFields, body: Mapping[str, Any], defaults: Mapping[str, float]) -> dict[str, Any]:
    """What every response says again of its question; `defaults` are the model's own."""
    form = (body.get("text") or {}).get("format") or {"type": "text"}
    said = {
        "background": False,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": defaults.get("temperature", 1.0) if fields.temperature is None else fields.temperature,
        "text": {"format": form},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [{"description": None, "parameters": None, "strict": None, **tool} for tool in fields.tools or ()],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": defaults.get("top_p", 1.0) if fields.top_p is None else fields.top_p,
        "truncation": "disabled",
    }
    kept = ("user", "safety_identifier", "prompt_cache_key")
    return {**said, **{name: body[name] for name in kept if body.get(name) is not None}}


def _format(text: TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    form = text.format
    if form.type == "json_schema" and form.schema is None:
        raise InvalidRequest("text.format.schema is missing", param="text.format.schema")
    return ResponseFormat(form.type, JSONSchema(form.schema))


def _tool(tool: Mapping[str, Any], place: str) -> OfferedTool:
    kind = tool.get("type")
    if kind != "function":
        raise InvalidRequest(f'{place} is of type "{kind}"; a model here can call functions only', param=place)
    function = convert(tool, _FunctionTool, place)
    return OfferedTool("function", Function(function.name, function.parameters))


def _messages(fields: ResponseFields) -> list[Message]:
    messages = [Message("system", fields.instructions)] if fields.instructions else []
    if isinstance(fields.input, str):
        return [*messages, Message("user", fields.input)]
    for index, item in enumerate(fields.input):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[Message], item: Mapping[str, Any], place: str) -> None:
    """Goes on by one item. Reasoning is left out: it is for the model that wrote it."""
    kind = item.get("type") or "message"
    if kind == "message":
        message = convert(item, _MessageItem, place)
        messages.append(Message(message.role, content_text(message.content, f"{place}.content", _TEXT_PARTS)))
    elif kind == "function_call":
        call = convert(item, _CallItem, place)
        # What an answer said and what it called are items of their own, and one message.
        if not messages or messages[-1].role != "assistant":
            messages.append(Message("assistant"))
        calls = messages[-1].tool_calls or []
        messages[-1].tool_calls = [*calls, ToolCall(CalledFunction(call.name, call.arguments), call.call_id)]
    elif kind == "function_call_output":
        output = convert(item, _OutputItem, place)
        text = content_text(output.output, f"{place}.output", _TEXT_PARTS)
        messages.append(Message("tool", text, tool_call_id=output.call_id))
    elif kind != "reasoning":
        taken = "messages, function calls and their outputs"
        raise InvalidRequest(f'{place} is of type "{kind}"; {taken} are taken here', param=place)
