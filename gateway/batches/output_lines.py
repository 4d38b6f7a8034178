"""Lines of output and error files: made of answers here, or found in those of a provider. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from backends.charges.told import UpstreamUsage
from backends.charges.usage import Usage
from backends.json_errors import NOT_JSON
from backends.untrusted import FieldReader
from gateway.batches.input_lines import encode_body
from gateway.batches.records import LineResult, LineRow

_OK = 200
_MAX_MESSAGE_CHARS = 2000


class _Answer(msgspec.Struct):
    usage: UpstreamUsage | None = None


class _Response(msgspec.Struct):
    status_code: Annotated[int, msgspec.Meta(ge=100, le=599)]
    body: msgspec.Raw
    request_id: str | None = None


class _Error(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class ProviderLine(msgspec.Struct):
    """A line of a provider's output or error file."""

    custom_id: str
    response: _Response | None = None
    error: _Error | None = None


_read_answer = FieldReader(_Answer)
_read_line = FieldReader(ProviderLine)


def result_of_answer(line: int, custom_id: str, status: int, request_id: str, body: bytes) -> LineResult:
    """What a line came to that got an HTTP answer with a JSON body. Raises: ValueError where it is none."""
    try:
        body.decode("utf-8")
        # On one line, as JSONL wants it; numbers stay as they are written.
        compact = msgspec.json.format(body, indent=-1)
        used = usage_of(body)
    except NOT_JSON as error:
        raise ValueError(f"the answer is no JSON: {error}") from error
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(compact)}
    return LineResult(
        line=line,
        is_answered=status == _OK,
        text=_line(custom_id, response, None),
        input_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.completion_tokens,
        reasoning_tokens=used.reasoning_tokens,
    )


def result_of_error(line: int, custom_id: str, code: str, message: str) -> LineResult:
    """What a line came to that got no answer."""
    return LineResult(line=line, is_answered=False, text=error_line(custom_id, code, message))


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """A line of an error file for a request without an answer."""
    return _line(custom_id, None, {"code": code, "message": message[:_MAX_MESSAGE_CHARS]})


def usage_of(body: bytes) -> Usage:
    """What an answer says it has used, as far as it is believed. Raises: msgspec.DecodeError."""
    try:
        told = _read_answer(body).usage
    except msgspec.ValidationError:
        return Usage()
    return Usage() if told is None else told.counted()


def read_provider_line(raw: bytes) -> ProviderLine | None:
    """A line of a provider's file; None where it is none."""
    try:
        return _read_line(raw)
    except msgspec.DecodeError:
        return None


def result_of_provider(found: ProviderLine, line: int, custom_id: str, model: str | None) -> LineResult:
    """A provider's line as the result of one here: the custom id is ours, and the model where one is given."""
    response, error = found.response, found.error
    if response is None:
        code = (error.code if error else None) or "provider_error"
        return result_of_error(line, custom_id, code, (error.message if error else None) or "the provider says no more")
    body = bytes(response.body)
    if model is not None:
        body = _with_model(body, model)
    try:
        return result_of_answer(line, custom_id, response.status_code, response.request_id or "", body)
    except ValueError:
        return result_of_error(line, custom_id, "provider_error", "the provider's answer is no JSON")


def results_of_provider(lines: Iterable[bytes], waiting: Mapping[str, LineRow], model: str | None) -> list[LineResult]:
    """What a provider's lines say of those that wait, by the provider's ids; everything else is nobody's."""
    results = []
    for raw in lines:
        found = read_provider_line(raw)
        line = waiting.get(found.custom_id) if found is not None else None
        if found is not None and line is not None:
            results.append(result_of_provider(found, line.id, line.custom_id, model))
    return results


class LineSplitter:
    """Pieces of a file to its lines. Raises: ValueError for a line that is longer than `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that end in this piece, without their ends; blank ones are left out."""
        first, *others = piece.split(b"\n")
        self._rest += first
        for part in others:
            yield from self._take()
            self._rest += part
        if len(self._rest) > self._max_bytes:
            raise ValueError(f"a line has more than {self._max_bytes} bytes")

    def end(self) -> Iterator[bytes]:
        """The last line, where its end is missing."""
        yield from self._take()

    def _take(self) -> Iterator[bytes]:
        line = bytes(self._rest).strip()
        self._rest.clear()
        if line:
            yield line


def _line(custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    # The id is random: one that counts would tell tenants how much others ask.
    name = f"batch_req_{secrets.token_hex(12)}"
    return msgspec.json.encode({"id": name, "custom_id": custom_id, "response": response, "error": error})


def _with_model(body: bytes, model: str) -> bytes:
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return body
    if "model" not in fields:
        return body
    return encode_body(fields, model)
