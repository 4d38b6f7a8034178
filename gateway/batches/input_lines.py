"""One line of a batch's input: what must be right before anything is asked, and what the request is. Pure.

The fields of the request's body are looked at when it is answered, as those of a live call are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backends.json_errors import NOT_JSON
from backends.operations import BY_PATH
from gateway.http.decode import is_model_name

ENDPOINTS = {f"/v1{path}": operation for path, operation in BY_PATH.items()}
"""What lines of a batch may ask for."""
MAX_CUSTOM_ID_CHARS = 512
_SHOWN_CHARS = 80
_DECODE = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Fields = dict[str, msgspec.Raw]
"""A JSON object whose values are left as they are written."""


class LineProblem(msgspec.Struct, frozen=True):
    """Why a batch is refused, as OpenAI says it; `line` counts from 1."""

    code: str
    message: str
    param: str | None
    line: int | None


class LineRequest(msgspec.Struct, frozen=True):
    """A good line."""

    custom_id: str
    model: str
    raw: bytes
    """The body as it was written."""
    body: Fields


class BadLine(Exception):
    """A line that cannot be asked."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param

    def problem(self, line: int | None) -> LineProblem:
        """The same as a batch tells it."""
        return LineProblem(self.code, str(self), self.param, line)


def read_line(raw: bytes, endpoint: str) -> LineRequest:
    """The request of a line. Raises: BadLine."""
    fields = _object(raw)
    if fields is None:
        raise BadLine("invalid_json_line", "the line is not a JSON object in UTF-8")
    custom_id = _text(fields, "custom_id")
    if not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        raise BadLine("invalid_custom_id", f"custom_id has 1 to {MAX_CUSTOM_ID_CHARS} characters", "custom_id")
    method = _text(fields, "method")
    if method != "POST":
        raise BadLine("invalid_method", f'method is "POST", not {_shown(method)}', "method")
    url = _text(fields, "url")
    if url != endpoint:
        raise BadLine("invalid_url", f'url is the batch\'s endpoint, "{endpoint}", not {_shown(url)}', "url")
    if "body" not in fields:
        raise BadLine("missing_required_parameter", "body is missing", "body")
    body = _object(bytes(fields["body"]))
    if body is None:
        raise BadLine("invalid_value", "body is not an object", "body")
    model = _text(body, "model", "body.")
    if not is_model_name(model):
        raise BadLine("invalid_value", "body.model is a name of 1 to 256 printable characters", "body.model")
    if bytes(body.get("stream", b"false")) not in (b"false", b"null"):
        raise BadLine("invalid_value", "an answer in a batch is no stream; leave body.stream away", "body.stream")
    return LineRequest(custom_id, model, bytes(fields["body"]), body)


def read_request(raw: bytes) -> LineRequest:
    """The request of a line that was found good before."""
    fields = _DECODE(raw)
    written = bytes(fields["body"])
    body = _DECODE(written)
    return LineRequest(msgspec.json.decode(fields["custom_id"]), msgspec.json.decode(body["model"]), written, body)


def encode_body(body: Fields, model: str) -> bytes:
    """The body of a request or an answer, with that model; everything else byte for byte."""
    return msgspec.json.encode({**body, "model": msgspec.Raw(msgspec.json.encode(model))})


def _object(raw: bytes) -> Fields | None:
    try:
        raw.decode("utf-8")
        return _DECODE(raw)
    except NOT_JSON:
        return None


def _text(fields: Fields, name: str, within: str = "") -> str:
    if name not in fields:
        raise BadLine("missing_required_parameter", f"{within}{name} is missing", f"{within}{name}")
    try:
        value: Any = msgspec.json.decode(fields[name])
    except NOT_JSON:
        value = None
    if not isinstance(value, str):
        raise BadLine("invalid_value", f"{within}{name} is not a text", f"{within}{name}")
    return value


def _shown(text: str) -> str:
    return msgspec.json.encode(text[:_SHOWN_CHARS]).decode("utf-8", "replace")
