"""Taps that read what a gateway must know off a stream as it passes: usage, whether it is complete, whether it failed.

Most pieces are one content event; for those this costs a few substring searches and nothing is decoded.
"""

from __future__ import annotations

import re

import msgspec

from backends.charges.told import UpstreamUsage
from backends.charges.usage import PROMPT_FIELDS, Usage, most_told
from backends.http.metering.long_line import LongLine
from backends.protocol import Facts
from backends.sse import BLANK_LINES, DONE, event_data, find_events, has_done
from backends.stream import StreamEnd
from backends.untrusted import Count, FieldReader, ServiceTier, believed


class _Timings(msgspec.Struct):
    """What llama.cpp tells of the choice whose usage it tells: it answers each one by itself, and adds nothing up."""

    predicted_n: Count | None = None


class MeteredAnswer(msgspec.Struct):
    """The part of a whole answer that is read: everything else passes unread but is checked to be JSON.

    `meta_info` is where SGLang's own `/generate` counts.
    """

    usage: UpstreamUsage | None = None
    timings: _Timings | None = None
    meta_info: UpstreamUsage | None = None
    service_tier: ServiceTier | None = None
    model: str | None = None
    error: msgspec.Raw = msgspec.Raw()


class _ResponseAnswer(msgspec.Struct):
    usage: UpstreamUsage | None = None
    service_tier: ServiceTier | None = None


class _Event(msgspec.Struct):
    usage: UpstreamUsage | None = None
    timings: _Timings | None = None
    service_tier: ServiceTier | None = None
    response: _ResponseAnswer | None = None
    error: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    """One of them, of which nothing is read."""


class _Choices(msgspec.Struct):
    choices: list[_Choice] = []


class _Named(msgspec.Struct):
    model: str | None = None


class _Typed(msgspec.Struct):
    type: str | None = None


class _FirstEvent(_Named):
    response: _Named | None = None


_read_event = FieldReader(_Event)
_read_first_event = FieldReader(_FirstEvent)
_read_type = FieldReader(_Typed)
_read_choices = FieldReader(_Choices)

_TYPE = b'"type"'
_USAGE = b'"usage"'
_ERROR = b'"error"'
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"[^"]')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_RESPONSES_ENDS = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete)"')
_RESPONSES_FAILS = re.compile(rb'"type"\s*:\s*"(?:response\.failed|error)"')

_MAX_HELD_BYTES = 64 * 1024
_LINE_END = re.compile(rb"[\r\n]")


class StreamMeter:
    """Reads usage, completeness and failure off an SSE stream into the call's facts.

    Complete means: `[DONE]` came, or, for servers that do not send it, every one of the `num_choices` said why it is
    finished and no event is left unfinished; for responses, a whole terminal event. And no error event came.
    """

    __slots__ = (
        "_facts",
        "_long_line",
        "_num_choices",
        "_num_finished",
        "_num_held",
        "_num_prompts",
        "_num_told",
        "_of_choices",
        "_parts",
        "_responses",
        "_tail",
        "_usage",
        "failed",
        "terminated",
    )

    def __init__(self, facts: Facts, *, responses: bool, num_choices: int = 1, num_prompts: int = 1) -> None:
        self._facts = facts
        self._responses = responses
        self._num_choices = 1 if responses else num_choices
        self._num_prompts = num_prompts
        self._num_finished = 0
        self._parts: list[bytes] = []
        self._num_held = 0
        self._long_line: LongLine | None = None
        self._tail = b""
        self._usage: Usage | None = None
        self._of_choices = Usage()
        self._num_told = 0
        self.terminated = False
        self.failed = False

    def is_complete(self) -> bool:
        """Whether the answer is whole, asked at a clean end of the transport."""
        is_between_events = self._is_between_events
        if self._is_in_line:
            self.feed(b"\n")
        is_finished = self._num_finished >= self._num_choices and is_between_events
        return (self.terminated or is_finished) and not self.failed

    def is_over(self) -> bool:
        """Whether `[DONE]` has ended a good answer, or the last event a response. Where servers send no `[DONE]` with
        chats, more may come, such as the usage.
        """
        has_ended = self.terminated or (self._responses and self._num_finished > 0 and self._is_between_events)
        return has_ended and not self.failed

    def has_failed(self) -> bool:
        """Whether an event has said that there will be no more."""
        return self.failed

    def feed(self, piece: bytes) -> None:
        """One piece, cut anywhere."""
        if self._is_in_line or not piece.endswith(b"\n"):
            piece = self._whole_lines(piece)
            if not piece:
                return
        if self._responses:
            self._read_responses(piece)
        else:
            # Searched from the end, where these stand in a long piece.
            if piece.rfind(DONE) >= 0 and has_done(piece):
                self.terminated = True
            if piece.rfind(_USAGE) >= 0:
                self._read_usage(piece)
            if _ERROR in piece:
                self._read_errors(piece)
            if not self.terminated and (b'"finish_reason":"' in piece or b'"finish_reason": "' in piece):
                self._num_finished += len(_FINISH.findall(piece))
        if self._num_finished:
            self._tail = (self._tail + piece[-4:])[-4:]

    def end(self, how: StreamEnd) -> None:
        """The stream has ended."""
        self._facts.stream_end = how

    def _read_responses(self, block: bytes) -> None:
        if _is_of_type(block, _RESPONSES_FAILS):
            self.failed = self._facts.may_quote = True
        self._read_usage(block)
        if _is_of_type(block, _RESPONSES_ENDS):
            self._num_finished = 1

    @property
    def _is_between_events(self) -> bool:
        """Asked only once an answer is finished."""
        return not self._is_in_line and self._tail.endswith(BLANK_LINES)

    @property
    def _is_in_line(self) -> bool:
        """Whether a line has begun that has not ended."""
        return bool(self._parts) or self._long_line is not None

    def _whole_lines(self, piece: bytes) -> bytes:
        """The lines that this piece completes; the unfinished one waits for its rest."""
        if self._long_line is not None:
            line_end = _LINE_END.search(piece)
            if line_end is None:
                self._long_line.feed(piece)
                return b""
            self._long_line.feed(piece[: line_end.start()])
            piece = self._long_line.shortened(line_end[0]) + piece[line_end.start() :]
            self._long_line = None
        cut = piece.rfind(b"\n") + 1 or piece.rfind(b"\r") + 1
        rest = piece[cut:]
        lines = b""
        if cut:
            lines = b"".join((*self._parts, piece[:cut]))
            self._parts.clear()
            self._num_held = 0
        if rest:
            self._parts.append(rest)
            self._num_held += len(rest)
            if self._num_held > _MAX_HELD_BYTES:
                self._long_line = LongLine(keeps_tail=not self._responses)
                self._long_line.feed(b"".join(self._parts))
                self._parts.clear()
                self._num_held = 0
        return lines

    def _read_usage(self, block: bytes) -> None:
        for begin, end in find_events(block, _USAGE, block.find(_USAGE)):
            self._note_usage(block[begin:end])

    def _note_usage(self, event: bytes) -> None:
        """What an event tells of the usage, if it is anything that counts."""
        decoded = _decoded(event)
        if decoded is None:
            return
        told = decoded if decoded.usage is not None or decoded.response is None else decoded.response
        usage = told.usage.told(told.service_tier) if told.usage is not None else None
        if usage is None or told.usage is None:
            return
        is_last = self._is_last(event)
        if decoded.timings is not None and is_last:
            usage = self._with_choice(usage)
        self._usage = self._facts.usage = most_told(self._usage, usage)
        lacks_output = not self._usage.completion_tokens and (told.usage.lacks_output or not is_last)
        self._facts.is_usage_partial = lacks_output

    def _with_choice(self, usage: Usage) -> Usage:
        """What all choices have used of which this one tells of itself; each prompt is read for as many of them."""
        self._num_told += 1
        total = self._of_choices = (self._of_choices + usage).mapped(believed)
        num_sharing = -(-self._num_told // self._num_prompts)
        of_prompts = {name: getattr(total, name) // num_sharing for name in PROMPT_FIELDS}
        return msgspec.structs.replace(total, **of_prompts)

    def _is_last(self, event: bytes) -> bool:
        """Whether no more of the answer, or of one of its choices, comes behind an event."""
        if self._responses:
            return _is_of_type(event, _RESPONSES_ENDS)
        return _FINISH.search(event) is not None or _NO_CHOICES.search(event) is not None

    def _read_errors(self, block: bytes) -> None:
        for begin, end in find_events(block, _ERROR, block.find(_ERROR)):
            if error_of(block[begin:end]) is not None:
                self.failed = self._facts.may_quote = True


def told_by(answer: MeteredAnswer, body: bytes, num_prompts: int) -> tuple[Usage | None, bool]:
    """What a whole answer with that body has used, as far as it tells, and whether that is not all."""
    told = answer.usage or answer.meta_info
    if told is None:
        return None, False
    usage = told.told(answer.service_tier)
    if usage is None or not _is_of_one_choice(answer, body):
        return usage, told.lacks_output
    # Of several prompts it is that of the first.
    return usage if num_prompts == 1 else msgspec.structs.replace(usage, prompt_tokens=0).bounded(), True


def _is_of_one_choice(answer: MeteredAnswer, body: bytes) -> bool:
    """Whether an answer of several choices tells the usage of the first alone."""
    if answer.timings is None or answer.usage is None:
        return False
    is_of_first = answer.timings.predicted_n == answer.usage.completion_tokens
    return is_of_first and len(_read_choices(body).choices) > 1


def model_of(event: bytes) -> str | None:
    """Which model the first event of a stream says that it is of."""
    data = event_data(event)
    try:
        named = _read_first_event(data) if data is not None else None
    except msgspec.DecodeError:
        return None
    if named is None:
        return None
    return named.model if named.model or named.response is None else named.response.model


def error_of(event: bytes) -> bytes | None:
    """The JSON of an event's `error`, where it has one."""
    decoded = _decoded(event)
    return said(decoded.error) if decoded is not None else None


def said(value: msgspec.Raw) -> bytes | None:
    """JSON that is there and not null."""
    raw = bytes(value)
    return raw if raw and raw != b"null" else None


def _is_of_type(events: bytes, types: re.Pattern[bytes]) -> bool:
    """Whether one of these events says that it is of such a type. What else it holds (metadata, schemas of tools) may
    say the same of itself.
    """
    named = types.search(events)
    if named is None:
        return False
    for begin, end in find_events(events, _TYPE, named.start()):
        data = event_data(events[begin:end])
        if data is None or types.search(data) is None:
            continue
        try:
            if types.fullmatch(b'"type":"%b"' % (_read_type(data).type or "").encode()) is not None:
                return True
        except msgspec.DecodeError:
            # One that was cut between its lines.
            return True
    return False


def _decoded(event: bytes) -> _Event | None:
    """None for a line that cannot be read: it does not end a stream, the client gets it as it came."""
    data = event_data(event)
    if data is None:
        return None
    try:
        return _read_event(data)
    except msgspec.DecodeError:
        return None
