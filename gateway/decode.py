"""The strict reading of a JSON body: what the gateway relies on is checked, everything else travels untouched."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import jiter

from backends.errors import InvalidRequest
from backends.protocol import Operation

_MAX_MODEL_CHARS = 256

_TEXT = (str, NoneType)
_NUMBER = (int, float, NoneType)
_FLAG = (bool, NoneType)
_OBJECT = (dict, NoneType)
_LIST = (list, NoneType)

_FIELDS: dict[str, tuple[type, ...]] = {
    "stream": _FLAG,
    "stream_options": _OBJECT,
    "user": _TEXT,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "n": _NUMBER,
    "seed": _NUMBER,
    "max_tokens": _NUMBER,
    "max_completion_tokens": _NUMBER,
    "max_output_tokens": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "logit_bias": _OBJECT,
    "tools": _LIST,
    "response_format": _OBJECT,
    "parallel_tool_calls": _FLAG,
    "encoding_format": _TEXT,
    "dimensions": _NUMBER,
    "metadata": _OBJECT,
    "stop": (str, list, NoneType),
    "tool_choice": (str, dict, NoneType),
}
"""Types of OpenAI's own fields; fields not named here are the upstream's matter."""

_REQUIRED: dict[Operation, tuple[str, tuple[type, ...]]] = {
    Operation.CHAT: ("messages", (list,)),
    Operation.EMBEDDING: ("input", (str, list)),
}

_WORDS: dict[type, str] = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    dict: "an object",
    list: "an array",
    NoneType: "null",
}


def decode_json(raw: bytes) -> Any:
    """Any JSON value, read strictly: no duplicate keys, no NaN or Infinity, UTF-8 only, 200 levels at most.

    Raises: InvalidRequest.
    """
    try:
        return jiter.from_json(raw, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


def decode_body(raw: bytes, operation: Operation) -> dict[str, Any]:
    """The body of an operation, its own fields checked.

    Raises: InvalidRequest, its `param` naming the field.
    """
    body = decode_json(raw)
    if type(body) is not dict:
        raise InvalidRequest(f"the body is {_WORDS.get(type(body), 'a value')}; it must be a JSON object")
    model = body.get("model")
    if type(model) is not str or not model:
        if operation is not Operation.RESPONSES or "model" in body:
            raise InvalidRequest(_wrong("model", model, "a non-empty string", "model" in body), param="model")
    elif len(model) > _MAX_MODEL_CHARS or not model.isprintable():
        raise InvalidRequest("model is not a model name: at most 256 printable characters", param="model")
    required = _REQUIRED.get(operation)
    if required is not None and type(body.get(required[0])) not in required[1]:
        name, types = required
        raise InvalidRequest(_wrong(name, body.get(name), _either(types), name in body), param=name)
    for name, value in body.items():
        types = _FIELDS.get(name)
        if types is not None:
            kind = type(value)
            if kind not in types:
                raise InvalidRequest(_wrong(name, value, _either(types), True), param=name)
            if kind is float and not math.isfinite(value):
                raise InvalidRequest(f"{name} is out of range", param=name)
    if operation is Operation.CHAT:
        _check_messages(body["messages"])
    return body


def _check_messages(messages: list[Any]) -> None:
    if not messages:
        raise InvalidRequest("messages is empty; give at least one message", param="messages")
    for index, message in enumerate(messages):
        if type(message) is not dict:
            where = f"messages[{index}]"
            raise InvalidRequest(_wrong(where, message, "an object", True), param=where)
        if type(message.get("role")) is not str:
            where = f"messages[{index}].role"
            raise InvalidRequest(_wrong(where, message.get("role"), "a string", "role" in message), param=where)


def _either(types: tuple[type, ...]) -> str:
    return " or ".join(dict.fromkeys(_WORDS[kind] for kind in types if kind is not NoneType))


def _wrong(name: str, value: object, expected: str, is_there: bool) -> str:
    found = f"is {_WORDS.get(type(value), 'a value')}" if is_there else "is missing"
    if value == "":
        found = "is empty"
    return f"{name} {found}; it must be {expected}"
