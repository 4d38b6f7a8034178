"""Taps that read what a gateway must know off a stream as it passes: usage, whether it is complete, whether it failed.

Most pieces are one content event; for those this costs a few substring searches and nothing is decoded.
"""

from __future__ import annotations

import re

import msgspec

from backends.protocol import Facts, Usage
from backends.sse import event_data, find_events, has_done
from backends.stream import StreamEnd


class _CachedDetails(msgspec.Struct):
    cached_tokens: int | None = None


class UpstreamUsage(msgspec.Struct):
    """OpenAI's usage object, in the words of chat (`prompt_tokens`) and of responses (`input_tokens`)."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _CachedDetails | None = None
    input_tokens_details: _CachedDetails | None = None

    def counted(self) -> Usage:
        """The same in the gateway's own words."""
        details = self.prompt_tokens_details or self.input_tokens_details
        return Usage(
            prompt_tokens=self.prompt_tokens or self.input_tokens or 0,
            completion_tokens=self.completion_tokens or self.output_tokens or 0,
            cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
        )


class Answer(msgspec.Struct):
    """The part of a whole answer that is read: everything else passes unread but is checked to be JSON."""

    usage: UpstreamUsage | None = None


class _ResponseAnswer(msgspec.Struct):
    usage: UpstreamUsage | None = None


class _Event(msgspec.Struct):
    usage: UpstreamUsage | None = None
    response: _ResponseAnswer | None = None
    error: msgspec.Raw | None = None
    type: str | None = None


_decode_event = msgspec.json.Decoder(_Event).decode

# A usage or an error that is there; `"usage":null` on every chunk is the common case and is passed over.
_TELLING = re.compile(rb'"(?:usage|error)":\s*[^n\s]')

_RESPONSES_ENDS = (b"response.completed", b"response.incomplete")
_RESPONSES_FAILS = (b"response.failed", b'"type":"error"', b'"type": "error"')


class StreamMeter:
    """Reads usage, completeness and failure off an SSE stream into the call's facts.

    Complete means: the terminator came (`[DONE]`; for responses a terminal event), or, for servers that do not
    send one, every choice that was begun may have finished, and no error event came.
    """

    __slots__ = ("_facts", "_parts", "_responses", "failed", "finished", "terminated")

    def __init__(self, facts: Facts, *, responses: bool) -> None:
        self._facts = facts
        self._responses = responses
        self._parts: list[bytes] = []
        self.terminated = False
        self.finished = False
        self.failed = False

    def is_complete(self) -> bool:
        """Whether the answer is whole, asked at a clean end of the transport."""
        if self._parts:
            self._read(b"".join(self._parts))
            self._parts.clear()
        return (self.terminated or self.finished) and not self.failed

    def feed(self, piece: bytes) -> None:
        """One piece, cut anywhere."""
        if self._parts or not piece.endswith(b"\n"):
            cut = piece.rfind(b"\n") + 1
            if not cut:
                self._parts.append(piece)
                return
            self._parts.append(piece[:cut])
            block = b"".join(self._parts)
            self._parts = [piece[cut:]] if cut < len(piece) else []
            self._read(block)
        else:
            self._read(piece)

    def end(self, how: StreamEnd) -> None:
        """The stream has ended."""
        self._facts.stream_end = how

    def _read(self, block: bytes) -> None:
        """Whole lines."""
        if self._responses:
            self._read_responses(block)
            return
        if b'"usage"' in block or b'"error"' in block:
            self._decode(block)
        if not self.finished and (b'"finish_reason":"' in block or b'"finish_reason": "' in block):
            self.finished = True
        if has_done(block):
            self.terminated = True

    def _read_responses(self, block: bytes) -> None:
        if any(mark in block for mark in _RESPONSES_FAILS):
            self.failed = True
        if b'"usage"' in block:
            self._decode(block)
        if any(mark in block for mark in _RESPONSES_ENDS):
            self.terminated = True

    def _decode(self, block: bytes) -> None:
        for begin, end in find_events(block, _TELLING):
            data = event_data(block[begin:end])
            if data is None:
                continue
            try:
                decoded = _decode_event(data)
            except msgspec.DecodeError:
                # One bad line does not end a stream; the client gets it as it came.
                continue
            usage = decoded.usage or (decoded.response.usage if decoded.response is not None else None)
            if usage is not None:
                self._facts.usage = usage.counted()
            if decoded.error is not None and bytes(decoded.error) != b"null":
                self.failed = True
