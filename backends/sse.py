"""Server-sent events as bytes: where events end, what their data is. Nothing is decoded that nobody asked for.

Follows the event stream format of the WHATWG HTML standard, section 9.2 (LF, CRLF and CR line ends, comments,
`data:` with and without a space).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from backends.errors import UpstreamGarbage

DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"

_LINE_END = rb"(?:\r\n|\n|\r(?!\n))"
_BLANK_LINE = re.compile(_LINE_END + rb"{2}")
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")
_DONE_LINE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\] *(?:[\r\n]|$)")


def encode_event(data: bytes) -> bytes:
    """One event with these data, which hold no line end."""
    return b"data: " + data + b"\n\n"


def split_events(data: bytes) -> Iterator[bytes]:
    """Each event's own bytes, its blank line included; a last event without one comes as it is."""
    start = 0
    for match in _BLANK_LINE.finditer(data):
        yield data[start : match.end()]
        start = match.end()
    if start < len(data):
        yield data[start:]


def whole_events_end(data: bytes) -> int:
    """Where the last whole event ends: the length of `data` unless an unfinished event follows."""
    if data.endswith(_BLANK_LINES):
        return len(data)
    return max(at + len(blank) if (at := data.rfind(blank)) >= 0 else 0 for blank in _BLANK_LINES)


def find_events(data: bytes, mark: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Where the events that hold `mark` begin and end, each once; events without it cost nothing."""
    end = 0
    for match in mark.finditer(data):
        at = match.start()
        if at < end:
            continue
        begin = max(end, whole_events_end(data[end:at]) + end)
        closing = _BLANK_LINE.search(data, at)
        end = closing.end() if closing is not None else len(data)
        yield begin, end


def event_data(event: bytes) -> bytes | None:
    """The data lines of one event joined by line feeds; None for comments and events without data."""
    lines = [line[6:] if line[5:6] == b" " else line[5:] for line in _LINE.split(event) if line.startswith(b"data:")]
    if not lines:
        return None
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def has_done(block: bytes) -> bool:
    """Whether one of these whole lines is the `[DONE]` that ends OpenAI's streams."""
    return DONE in block and _DONE_LINE.search(block) is not None


class EventBuffer:
    """Cuts a stream of pieces into whole events, wherever the pieces were cut."""

    def __init__(self, max_event_bytes: int = 16 * 1024**2) -> None:
        self._max_event_bytes = max_event_bytes
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completed, with their blank lines.

        Raises: UpstreamGarbage where one event is longer than `max_event_bytes`.
        """
        # A piece without a line end cannot complete an event; joining it each time would be quadratic.
        self._parts.append(piece)
        self._num_bytes += len(piece)
        if b"\n" not in piece and b"\r" not in piece:
            self._check_size()
            return []
        data = b"".join(self._parts)
        # A CR at the very end may be half of a CRLF, so it waits for the next piece.
        end = 0
        events = []
        for match in _BLANK_LINE.finditer(data, 0, len(data) - 1 if data.endswith(b"\r") else len(data)):
            events.append(data[end : match.end()])
            end = match.end()
        self._parts = [data[end:]] if end < len(data) else []
        self._num_bytes = len(data) - end
        self._check_size()
        return events

    def rest(self) -> bytes:
        """What is left without a blank line; the buffer is empty afterwards."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self._num_bytes = 0
        return rest

    def _check_size(self) -> None:
        if self._num_bytes > self._max_event_bytes:
            raise UpstreamGarbage(f"the upstream sent an event longer than {self._max_event_bytes} bytes")
