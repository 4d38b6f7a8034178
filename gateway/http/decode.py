"""The strict reading of a JSON body: what the gateway relies on is checked, everything else travels untouched.

Types are those of OpenAI's own fields; a field that is not named here is the upstream's matter.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import jiter
import msgspec

from backends.errors import InvalidRequest
from backends.operations import Operation
from gateway.http.members import COUNTED_FROM_BYTES, check_members

LONG_BYTES = 4 * 1024**2
"""What is longer is read in a thread, in which its members are counted while others are served."""
_MAX_MODEL_CHARS = 256

_Number = int | float | None
_Flag = bool | None
_Object = dict[str, Any] | None


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: _Flag = None


class CheckedMessage(msgspec.Struct):
    """One message of a chat."""

    role: str
    content: str | list[Any] | None = None


class Fields(msgspec.Struct):
    """What every operation's body may say."""

    model: str
    stream: _Flag = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: _Object = None
    temperature: _Number = None
    top_p: _Number = None


class GenerationFields(Fields):
    """What a body may say that asks for text."""

    n: _Number = None
    seed: _Number = None
    max_tokens: _Number = None
    presence_penalty: _Number = None
    frequency_penalty: _Number = None
    logit_bias: _Object = None
    stop: str | list[Any] | None = None


class CheckedCompletion(GenerationFields):
    """A completion's body."""

    prompt: str | list[Any] | None = None


class PredictedPart(msgspec.Struct):
    """A part of a prediction's content."""

    type: str
    text: str | None = None


class CheckedPrediction(msgspec.Struct):
    """`prediction`: text that the answer will probably repeat."""

    type: Literal["content"]
    content: str | list[PredictedPart]


class CheckedChat(GenerationFields, kw_only=True):
    """A chat completion's body."""

    messages: list[CheckedMessage]
    max_completion_tokens: _Number = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: _Object = None
    prediction: CheckedPrediction | None = None
    parallel_tool_calls: _Flag = None


class CheckedEmbedding(Fields, kw_only=True):
    """An embedding's body."""

    input: str | list[Any]
    encoding_format: str | None = None
    dimensions: _Number = None


class ResponsesFields(Fields, kw_only=True):
    """A response's body; a stored prompt may name the model instead."""

    model: str = ""
    input: str | list[Any] | None = None
    max_output_tokens: _Number = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: _Flag = None


_FIELDS: dict[Operation, type[Fields]] = {
    Operation.CHAT: CheckedChat,
    Operation.COMPLETION: CheckedCompletion,
    Operation.EMBEDDING: CheckedEmbedding,
    Operation.RESPONSES: ResponsesFields,
}
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def decode_json(raw: bytes) -> Any:
    """Any JSON value, read strictly: no duplicate keys, no NaN or Infinity, UTF-8 only, 200 levels at most.

    Raises: InvalidRequest, BodyTooLarge for more members than one body may have.
    """
    if len(raw) > COUNTED_FROM_BYTES:
        check_members(raw)
    try:
        return jiter.from_json(raw, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="none")
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


def is_model_name(model: str) -> bool:
    """Whether a request may name a model so."""
    return 1 <= len(model) <= _MAX_MODEL_CHARS and model.isprintable()


def decode_body(raw: bytes, operation: Operation) -> tuple[dict[str, Any], Fields]:
    """The whole body of an operation, and the fields of it that the gateway knows, checked.

    Raises: InvalidRequest, its `param` naming the field; BodyTooLarge as `decode_json`.
    """
    body = decode_json(raw)
    if type(body) is not dict:
        raise InvalidRequest("the body is not a JSON object")
    try:
        fields = msgspec.convert(body, _FIELDS[operation])
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    model = fields.model
    if "model" in body and not is_model_name(model):
        raise InvalidRequest("model must be a name of 1 to 256 printable characters", param="model")
    if isinstance(fields, CheckedChat) and not fields.messages:
        raise InvalidRequest("messages is empty; give at least one message", param="messages")
    if _has_infinity(body):
        raise InvalidRequest("a number in the body is out of range")
    return body, fields


def _has_infinity(body: dict[str, Any]) -> bool:
    # 1e999 is valid JSON; as a float it is infinite, which no JSON that we write could say again.
    return math.inf in body.values() or -math.inf in body.values()


def _refused(problem: str) -> InvalidRequest:
    match = _PLACE.match(problem)
    assert match is not None, "the pattern takes any text"
    what, path = match["what"], match["path"] or ""
    missing = _MISSING.match(what)
    if missing is not None:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"{path} is missing", param=path)
    return InvalidRequest(f"{path}: {what[:1].lower()}{what[1:].replace('`', '')}", param=path)
