"""Makes cache entries of upstream answers, and refuses answers that are incomplete or not fit to be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Call, Headers, Reply
from backends.resume import RESUME_FIELD
from backends.sse import event_data
from backends.stream import StreamEnd
from policies.cache.entry import AnswerForm, Entry
from policies.speculation.outcome import STAGE_HEADER

# A stream is searched as bytes, not decoded: a name with its quotes cannot stand inside of another JSON text.
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"([^"]+)"')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_ERROR = re.compile(rb'"error"\s*:\s*[^n\s]')
_TYPE = b'"type"'
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_WHOLE = frozenset(
    {
        *("stop", "length", "tool_calls", "function_call"),
        *("eos", "eos_token", "stop_sequence", "end_turn", "tool_use", "max_tokens", "model_length"),
    }
)
"""Why a choice is at its end where a model has said all that it may: OpenAI's words, and other servers' for the same.

Any other word may mean that it was broken off: by a filter, an error, a want of room at the server.
"""


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    error: object = None


class _Answer(msgspec.Struct):
    """The fields of an answer, or of an event, that decide whether it may be stored."""

    choices: list[_Choice] | None = None
    data: list[msgspec.Raw] | None = None
    error: object = None
    status: object = None
    type: object = None
    usage: object = None


_DECODE = msgspec.json.Decoder(_Answer).decode


def is_shareable(status: int, headers: Headers, form: AnswerForm) -> bool:
    """Whether an answer may be shared: a success of the expected type that is not compressed."""
    content_type = b""
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"content-encoding" and value != b"identity":
            return False
    expected = b"application/json" if form is AnswerForm.JSON else b"text/event-stream"
    return status == 200 and content_type.startswith(expected)


def says_error(body: bytes) -> bool:
    """Whether a whole answer is an error, whatever its status: some servers have begun a 200 before they know."""
    if _ERROR.search(body) is None:
        return False
    try:
        return _DECODE(body).error is not None
    except NOT_JSON:
        return False


def entry_of_body(call: Call, reply: Reply, created: float) -> Entry | None:
    """An answer that is not streamed as an entry; None if it must not be shared."""
    if reply.body is None or not is_shareable(reply.status, reply.headers, AnswerForm.JSON) or says_error(reply.body):
        return None
    content_type = reply.header(b"content-type") or b""
    watch = call.facts.stopwatch
    tempo = watch.of_body() if watch is not None else None
    stage = reply.header(STAGE_HEADER) or b""
    return Entry(AnswerForm.JSON, reply.body, content_type, created, call.facts.usage, tempo=tempo, stage=stage)


def entry_of_events(call: Call, headers: Headers, body: bytes, created: float) -> Entry | None:
    """A stream that ended cleanly as an entry; None if it must not be shared."""
    if not is_shareable(200, headers, AnswerForm.SSE):
        return None
    if _ERROR.search(body) is not None:
        return None
    content_type = next(value for name, value in headers if name == b"content-type")
    usage_event = None
    usage_at = max((match.start() for match in _USAGE.finditer(body)), default=None)
    if usage_at is not None:
        start, end = _event_around(body, usage_at)
        try:
            last = _DECODE(event_data(body[start:end]) or b"")
        except NOT_JSON:
            return None
        usage_event = (start, end) if last.choices == [] else None
    watch = call.facts.stopwatch
    tempo = watch.of_events(body) if watch is not None else None
    stage = next((value for name, value in headers if name == STAGE_HEADER), b"")
    return Entry(
        AnswerForm.SSE, body, content_type, created, call.facts.usage, usage_event, usage_at is not None, tempo, stage
    )


def may_store(call: Call, headers: Headers, entry: Entry, max_bytes: int) -> bool:
    """Whether the entry may be stored: whole, not broken off, and not forbidden by the upstream."""
    if len(entry.body) > max_bytes or _is_patched(call):
        return False
    if any(name == b"cache-control" and b"no-store" in value.lower() for name, value in headers):
        return False
    if entry.form is AnswerForm.SSE:
        if call.operation is Operation.RESPONSES:
            return _ends_completed(entry.body)
        reasons = [reason.decode("latin-1") for reason in _FINISHED.findall(entry.body)]
        return len(reasons) >= max(1, call.num_choices) and _WHOLE.issuperset(reasons)
    try:
        answer = _DECODE(entry.body)
    except NOT_JSON:
        return False
    if call.operation is Operation.RESPONSES:
        return answer.status == "completed"
    if call.operation is Operation.EMBEDDING:
        return bool(answer.data)
    choices = answer.choices or ()
    return bool(choices) and all(choice.finish_reason in _WHOLE and choice.error is None for choice in choices)


def _ends_completed(body: bytes) -> bool:
    """Whether the last event of a response's stream says that it is complete."""
    start, end = _event_around(body, body.rfind(_TYPE))
    try:
        return _DECODE(event_data(body[start:end]) or b"").type == "response.completed"
    except NOT_JSON:
        return False


def _is_patched(call: Call) -> bool:
    """Whether the call's answer was continued elsewhere after it broke, or the call itself continues a broken answer.

    No model has given such an answer as a whole, and such a call is hardly ever repeated, so neither is stored.
    """
    if call.facts.resumed is not None:
        return True
    begun = call.body.get(RESUME_FIELD) if call.body is not None else None
    return isinstance(begun, Mapping) and bool(begun.get("tokens"))


class Recorder:
    """A tap that records a stream and hands it over at a clean end; it gives up beyond `max_bytes`."""

    __slots__ = ("_keep", "_max_bytes", "_num_bytes", "_pieces")

    def __init__(self, max_bytes: int, keep: Callable[[bytes], object]) -> None:
        self._keep = keep
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """One piece, as it came."""
        self._num_bytes += len(piece)
        if self._num_bytes <= self._max_bytes:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def end(self, how: StreamEnd) -> None:
        """Hand over the recorded stream, if it is complete."""
        if how is StreamEnd.CLEAN and self._pieces and self._num_bytes <= self._max_bytes:
            self._keep(b"".join(self._pieces))
        self._pieces.clear()


def _event_around(body: bytes, position: int) -> tuple[int, int]:
    """The beginning and the end, with its blank line, of the event at a position."""
    starts = [found + len(blank) for blank in _BLANK_LINES if (found := body.rfind(blank, 0, position)) >= 0]
    ends = [found + len(blank) for blank in _BLANK_LINES if (found := body.find(blank, position)) >= 0]
    return max(starts, default=0), min(ends, default=len(body))
