"""Passes a stream on in whole events, and takes the usage chunk out where the client did not ask for it.

The leaf asks the upstream for usage on every stream, so that streams are accounted like whole answers; what the
client sees must not change for that. A stream that breaks inside of an event is shown up to the event before it, so
that the error event behind it can be read.

vLLM names its `system_fingerprint` in the event with the finish reason, but where usage is asked for in the usage chunk
instead. There it is put back: the event that says why an answer is finished waits for the one behind it, unless it
brings words of its own: these wait for nothing.
"""

from __future__ import annotations

import re
from typing import Any

import jiter
import msgspec

from backends.sse import event_data, find_events, split_events, whole_events_end

_MAX_HELD_BYTES = 64 * 1024
_USAGE = b'"usage"'
_FINGERPRINT = b'"system_fingerprint"'
_FINISH = b'"finish_reason":"'
_OBJECT = re.compile(rb"(?:^|[\r\n])data: ?\{")
"""At the beginning of a line: a text may hold the same, but no line end."""


class UsageChunkFilter:
    """Takes pieces of a stream and returns pieces of it. With `hides_usage` it removes the usage chunk: an event with
    empty `choices` whose `usage` is an object.

    The beginning of an event is held until its end comes, up to 64 KiB, as a usage chunk is never longer.
    """

    __slots__ = ("_finish", "_held", "_hides_usage", "_is_new", "_passing", "_seeks")

    def __init__(self, *, hides_usage: bool = True) -> None:
        self._hides_usage = hides_usage
        self._held = b""
        self._passing = False
        self._finish = b""
        self._is_new = True
        self._seeks = hides_usage

    def feed(self, piece: bytes) -> bytes:
        """What may be sent on now; perhaps nothing yet."""
        if self._held:
            piece = self._held + piece
            self._held = b""
        if piece.endswith(b"\n\n"):
            self._passing = False
        elif (end := whole_events_end(piece)) < len(piece):
            if (self._passing and not end) or len(piece) - end > _MAX_HELD_BYTES:
                self._passing = True
            else:
                self._passing = False
                piece, self._held = piece[:end], piece[end:]
        else:
            self._passing = False
        at = piece.find(_USAGE) if self._hides_usage else -1
        if self._seeks:
            if self._is_new and piece:
                self._is_new = False
                # Most servers name it in every event; then there is nothing to put back.
                self._seeks = _FINGERPRINT not in piece
            if self._finish or _FINISH in piece:
                return self._with_fingerprint(piece, at)
        return self._without_usage(piece, at)[0] if at >= 0 else piece

    def whole(self) -> bytes:
        """The whole events that were held, for a stream that breaks."""
        finish, self._finish = self._finish, b""
        return finish

    def rest(self) -> bytes:
        """What was held when the stream ended."""
        held, self._held = self._held, b""
        return self.whole() + held

    def _with_fingerprint(self, piece: bytes, at: int) -> bytes:
        """The events; a last one that only finishes an answer, and names no fingerprint, waits for the next."""
        shown, fingerprint = self._without_usage(piece, at) if at >= 0 else (piece, None)
        shown = self.whole() + shown
        if at >= 0 or self._passing or _FINGERPRINT in shown:
            return _stamped(shown, fingerprint) if fingerprint is not None and _FINGERPRINT not in shown else shown
        begin = whole_events_end(shown[:-4])
        if _FINISH in shown[begin:] and not _has_words(shown[begin:]):
            shown, self._finish = shown[:begin], shown[begin:]
        return shown

    def _without_usage(self, piece: bytes, at: int) -> tuple[bytes, Any]:
        """The events but for usage chunks, and the fingerprint that one of these named."""
        kept = []
        kept_until = 0
        fingerprint = None
        for begin, end in find_events(piece, _USAGE, at):
            chunk = _usage_chunk(piece[begin:end])
            if chunk is not None:
                kept.append(piece[kept_until:begin])
                kept_until = end
                fingerprint = chunk.get("system_fingerprint")
        return b"".join((*kept, piece[kept_until:])), fingerprint


def _usage_chunk(event: bytes) -> dict[str, Any] | None:
    chunk = _decoded(event)
    is_one = chunk is not None and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
    return chunk if is_one else None


def _decoded(event: bytes) -> dict[str, Any] | None:
    data = event_data(event)
    if data is None:
        return None
    try:
        chunk = jiter.from_json(data)
    except ValueError:
        return None
    return chunk if isinstance(chunk, dict) else None


def _has_words(event: bytes) -> bool:
    """Whether a choice of it brings anything that a client could show; also where that cannot be read."""
    chunk = _decoded(event)
    choices = chunk.get("choices") if chunk is not None else None
    return not isinstance(choices, list) or any(map(_brings_words, choices))


def _brings_words(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("text"):
        return True
    delta = choice.get("delta") or {}
    return not isinstance(delta, dict) or any(value for name, value in delta.items() if name != "role")


def _stamped(events: bytes, fingerprint: object) -> bytes:
    """The events, of which the last one that finishes an answer also names the fingerprint, if it can be read then."""
    finish = events.rfind(_FINISH)
    if finish <= 0:
        return events
    *_, head = split_events(events[:finish])
    begin = finish - len(head)
    event = next(split_events(events[begin:]))
    found = _OBJECT.search(event)
    if found is None:
        return events
    at = found.end()
    stamped = b'%b"system_fingerprint":%b,%b' % (event[:at], msgspec.json.encode(fingerprint), event[at:])
    if _decoded(stamped) is None:
        return events
    return events[:begin] + stamped + events[begin + len(event) :]
