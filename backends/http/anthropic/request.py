"""Turns a chat completion call into a Messages request, as documented at https://platform.claude.com/docs/en/api/messages.

What has no counterpart there and could change the answer is refused by name, never dropped. Fields that neither
OpenAI's API nor this module knows travel as they are: the Messages API itself refuses those it does not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from backends.errors import InvalidRequest
from backends.http.anthropic.fields import shown, typed
from backends.http.anthropic.prompt_cache import mark_for_cache
from backends.http.anthropic.thinking import read_thinking
from backends.http.anthropic.tool_ids import ToolIds
from backends.protocol import Call

Block: TypeAlias = dict[str, Any]
"""A content block of the Messages API."""
Turn: TypeAlias = dict[str, Any]
"""A message of the Messages API: `role`, and `content` as a list of blocks."""

# Translated below, or without effect on the answer: how OpenAI delivers, stores and caches.
_NOT_PASSED_ON = frozenset({
    "max_completion_tokens", "max_tokens", "messages", "metadata", "model", "output_config", "parallel_tool_calls",
    "reasoning_effort", "response_format", "safety_identifier", "stop", "temperature", "tool_choice", "tools", "user",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "store", "stream", "stream_options",
})  # fmt: skip
# What each field says when it asks for nothing special; null always does.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "seed": (),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_WRITTEN_OTHERWISE = {
    "function_call": "tool_choice",
    "functions": "tools",
    "stop_sequences": "stop",
    "system": "a message with the role system",
}
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})

_TEXT_ONLY = frozenset({"text"})
_SPOKEN = frozenset({"text", "refusal"})
_ANY_PART = frozenset({"text", "image_url", "file"})


def build_request(call: Call, default_max_tokens: int) -> bytes:
    """The body of the Messages request that asks for the same answer.

    Raises: InvalidRequest, naming the field that is wrong or has no counterpart.
    """
    body = call.body
    if body is None:
        raise InvalidRequest("the body must be a JSON object")
    request = _passed_on(body)
    request["model"] = call.model
    request["max_tokens"] = _max_tokens(body, default_max_tokens)
    system, request["messages"] = read_messages(body.get("messages"))
    if system:
        request["system"] = system
    if call.stream:
        request["stream"] = True
    _add_sampling(request, body)
    _add_tools(request, body)
    _add_output(request, body)
    _add_metadata(request, body)
    if call.prompt_cache_key:
        mark_for_cache(request)
    try:
        return msgspec.json.encode(request)
    except (UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest("the body holds text that is not Unicode, or is nested too deeply") from error


def read_messages(messages: object) -> tuple[list[Block], list[Turn]]:
    """The system blocks, and the turns: user and assistant alternate, neighbours of one role become one turn.

    Raises: InvalidRequest, naming the message.
    """
    system: list[Block] = []
    turns: list[Turn] = []
    ids = ToolIds()
    for index, item in enumerate(typed(messages, list, "messages")):
        where = f"messages[{index}]"
        message = typed(item, dict, where)
        match message.get("role"):
            case "system" | "developer":
                system += _blocks(message.get("content"), f"{where}.content", _TEXT_ONLY)
                _refuse_name(message, where)
                continue
            case "user":
                role, blocks = "user", _user_blocks(message, where)
            case "assistant":
                role, blocks = "assistant", _assistant_blocks(message, where, ids)
            case "tool":
                role, blocks = "user", [_tool_result(message, where, ids)]
            case role:
                raise InvalidRequest(
                    f"{where}.role is {shown(role)}; it must be system, developer, user, assistant or tool",
                    param=f"{where}.role",
                )
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise InvalidRequest("messages needs at least one that is not a system message", param="messages")
    return system, turns


def _passed_on(body: Mapping[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in _NOT_PASSED_ON:
            continue
        if name in _WRITTEN_OTHERWISE:
            raise InvalidRequest(f"{name} is not taken here; write it as {_WRITTEN_OTHERWISE[name]}", param=name)
        if name not in _NEUTRAL:
            request[name] = value
        elif value not in _NEUTRAL[name]:
            raise InvalidRequest(
                f"{name} is {shown(value)}, which the Messages API has no counterpart for; leave it out", param=name
            )
    return request


def _max_tokens(body: Mapping[str, Any], default: int) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        if body.get(name) is not None:
            value = typed(body[name], int, name)
            if value < 1:
                raise InvalidRequest(f"{name} is {value}; it must be at least 1", param=name)
            return value
    return default


def _add_sampling(request: dict[str, Any], body: Mapping[str, Any]) -> None:
    temperature = body.get("temperature")
    if temperature is not None:
        if isinstance(temperature, bool) or not isinstance(temperature, int | float):
            raise InvalidRequest(f"temperature must be a number, not {shown(temperature)}", param="temperature")
        if not 0 <= temperature <= 1:
            raise InvalidRequest(f"temperature is {temperature}; the Messages API takes 0 to 1", param="temperature")
        request["temperature"] = temperature
    stop = body.get("stop")
    if isinstance(stop, str):
        request["stop_sequences"] = [stop]
    elif stop:
        request["stop_sequences"] = [typed(item, str, f"stop[{i}]") for i, item in enumerate(typed(stop, list, "stop"))]


def _add_tools(request: dict[str, Any], body: Mapping[str, Any]) -> None:
    tools = typed(body.get("tools") or [], list, "tools")
    choice = _tool_choice(body.get("tool_choice"))
    if not tools:
        if choice is not None and choice["type"] in ("any", "tool"):
            raise InvalidRequest("tool_choice asks for a tool, but tools is empty", param="tool_choice")
        return
    request["tools"] = [_tool(item, f"tools[{i}]") for i, item in enumerate(tools)]
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not typed(parallel, bool, "parallel_tool_calls"):
        choice = choice or {"type": "auto"}
        if choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
    if choice is not None:
        request["tool_choice"] = choice


def _tool(item: object, where: str) -> Block:
    tool = typed(item, dict, where)
    if tool.get("type") != "function":
        raise InvalidRequest(f"{where}.type is {shown(tool.get('type'))}; it must be function", param=f"{where}.type")
    function = typed(tool.get("function"), dict, f"{where}.function")
    schema = function.get("parameters")
    block: Block = {
        "name": typed(function.get("name"), str, f"{where}.function.name"),
        "input_schema": {"type": "object", "properties": {}}
        if schema is None
        else typed(schema, dict, f"{where}.function.parameters"),
    }
    if function.get("description") is not None:
        block["description"] = typed(function["description"], str, f"{where}.function.description")
    if function.get("strict") is not None:
        block["strict"] = typed(function["strict"], bool, f"{where}.function.strict")
    return _with_cache_control(block, tool)


def _tool_choice(choice: object) -> Block | None:
    match choice:
        case None:
            return None
        case "auto" | "none":
            return {"type": choice}
        case "required":
            return {"type": "any"}
        case {"type": "function", "function": {"name": str(name)}}:
            return {"type": "tool", "name": name}
    raise InvalidRequest('tool_choice must be "auto", "none", "required" or name one function', param="tool_choice")


def _add_output(request: dict[str, Any], body: Mapping[str, Any]) -> None:
    output = dict(typed(body.get("output_config") or {}, dict, "output_config"))
    effort = body.get("reasoning_effort")
    if effort == "none":
        request.setdefault("thinking", {"type": "disabled"})
    elif isinstance(effort, str) and effort in _EFFORTS:
        output["effort"] = effort
    elif effort is not None:
        raise InvalidRequest(
            f"reasoning_effort is {shown(effort)}; the Messages API takes low, medium, high, xhigh, max (or none)",
            param="reasoning_effort",
        )
    response_format = typed(body.get("response_format") or {"type": "text"}, dict, "response_format")
    match response_format:
        case {"type": "text"}:
            pass
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            output["format"] = {"type": "json_schema", "schema": schema}
        case _:
            raise InvalidRequest(
                "response_format must be text, or json_schema with a schema; the Messages API has no other",
                param="response_format",
            )
    if output:
        request["output_config"] = output


def _add_metadata(request: dict[str, Any], body: Mapping[str, Any]) -> None:
    metadata = dict(typed(body.get("metadata") or {}, dict, "metadata"))
    for name in ("user", "safety_identifier"):
        if body.get(name) is not None:
            metadata.setdefault("user_id", typed(body[name], str, name))
    if metadata:
        request["metadata"] = metadata


def _user_blocks(message: Mapping[str, Any], where: str) -> list[Block]:
    blocks = _blocks(message.get("content"), f"{where}.content", _ANY_PART)
    if not blocks:
        raise InvalidRequest(f"{where}.content is empty; a user message must say something", param=f"{where}.content")
    _refuse_name(message, where)
    return blocks


def _assistant_blocks(message: Mapping[str, Any], where: str, ids: ToolIds) -> list[Block]:
    """May be empty: Claude itself gives such answers, and clients send them back.

    Reasoning that comes back as a text is left out: the Messages API takes none without its signature.
    """
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise InvalidRequest(f"{where}.{name} has no counterpart in the Messages API", param=f"{where}.{name}")
    _refuse_name(message, where)
    blocks: list[Block] = []
    for name in ("content", "refusal"):
        if message.get(name) is not None:
            blocks += _blocks(message[name], f"{where}.{name}", _SPOKEN)
    calls = typed(message.get("tool_calls") or [], list, f"{where}.tool_calls")
    blocks += [_tool_use(call, f"{where}.tool_calls[{i}]", ids) for i, call in enumerate(calls)]
    # Alone it is no turn: what follows it is what it was thought for.
    return [*read_thinking(message, where), *blocks] if blocks else blocks


def _tool_use(item: object, where: str, ids: ToolIds) -> Block:
    call = typed(item, dict, where)
    function = typed(call.get("function"), dict, f"{where}.function")
    arguments = typed(function.get("arguments"), str, f"{where}.function.arguments")
    try:
        # Kept as written, so that large numbers stay exact; decoded only to know that it is an object.
        encoded = arguments.encode() if arguments.strip() else b"{}"
        is_object = isinstance(msgspec.json.decode(encoded), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidRequest(f"{where}.function.arguments is not a JSON object", param=f"{where}.function.arguments")
    return {
        "type": "tool_use",
        "id": ids.of_call(typed(call.get("id"), str, f"{where}.id")),
        "name": typed(function.get("name"), str, f"{where}.function.name"),
        "input": msgspec.Raw(encoded),
    }


def _tool_result(message: Mapping[str, Any], where: str, ids: ToolIds) -> Block:
    block: Block = {
        "type": "tool_result",
        "tool_use_id": ids.of_result(typed(message.get("tool_call_id"), str, f"{where}.tool_call_id")),
    }
    content = _blocks(message.get("content"), f"{where}.content", _ANY_PART)
    if content:
        block["content"] = content
    return block


def _blocks(content: object, where: str, allowed: frozenset[str]) -> list[Block]:
    """A message's content as blocks; text that says nothing is left out, since the Messages API refuses it. Models,
    Claude too, do say a line end and no more before they call a tool.
    """
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or an array of parts, not {shown(content)}", param=where)
    blocks = [_block(part, f"{where}[{i}]", allowed) for i, part in enumerate(content)]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _block(item: object, where: str, allowed: frozenset[str]) -> Block:
    part = typed(item, dict, where)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        raise InvalidRequest(
            f"{where}.type is {shown(kind)}; taken here: {', '.join(sorted(allowed))}", param=f"{where}.type"
        )
    block: Block
    if kind == "image_url":
        # `detail` only says how many tokens OpenAI may spend on the picture.
        image = typed(part.get("image_url"), dict, f"{where}.image_url")
        block = {"type": "image", "source": _image_source(image.get("url"), f"{where}.image_url.url")}
    elif kind == "file":
        block = _document(typed(part.get("file"), dict, f"{where}.file"), f"{where}.file")
    else:
        block = {"type": "text", "text": typed(part.get(kind), str, f"{where}.{kind}")}
    return _with_cache_control(block, part)


def _image_source(value: object, where: str) -> Block:
    url = typed(value, str, where)
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    media_type, data = _data_url(url, where)
    return {"type": "base64", "media_type": media_type, "data": data}


def _document(file: Mapping[str, Any], where: str) -> Block:
    media_type, data = _data_url(typed(file.get("file_data"), str, f"{where}.file_data"), f"{where}.file_data")
    if media_type != "application/pdf":
        raise InvalidRequest(f"{where}.file_data must be a PDF (application/pdf)", param=f"{where}.file_data")
    block: Block = {"type": "document", "source": {"type": "base64", "media_type": media_type, "data": data}}
    if file.get("filename") is not None:
        block["title"] = typed(file["filename"], str, f"{where}.filename")
    return block


def _data_url(url: str, where: str) -> tuple[str, str]:
    """The media type and the base64 text of a data URL (RFC 2397)."""
    head, comma, data = url.partition(",")
    media_type = head.removeprefix("data:").partition(";")[0]
    if not (head.startswith("data:") and head.endswith(";base64") and comma and media_type):
        raise InvalidRequest(f"{where} must be a data: URL with a media type and base64 data", param=where)
    return media_type, data


def _with_cache_control(block: Block, source: Mapping[str, Any]) -> Block:
    """Clients that know Claude mark what its prompt cache shall keep in the same words."""
    if source.get("cache_control") is not None:
        block["cache_control"] = source["cache_control"]
    return block


def _refuse_name(message: Mapping[str, Any], where: str) -> None:
    if message.get("name") is not None:
        raise InvalidRequest(
            f"{where}.name has no counterpart in the Messages API; say in the text who speaks", param=f"{where}.name"
        )
