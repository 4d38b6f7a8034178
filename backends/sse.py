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
# Spelled out, because an alternation of plain beginnings is what the regular expression engine can search fast.
_BLANK_LINE = re.compile(rb"\r\n" + _LINE_END + rb"|\n" + _LINE_END + rb"|\r(?!\n)" + _LINE_END)
BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")


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
    if data.endswith(BLANK_LINES):
        return len(data)
    return _last_blank_line(data, 0, len(data))


def find_events(data: bytes, field: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Where the events begin and end in which a JSON field (its name, quoted) has a value other than null.

    `at` is where the field stands first, from `data.find(field)`. Events without it cost next to nothing.
    """
    end = 0
    while at >= 0:
        after = at + len(field)
        if _is_null(data, after):
            at = data.find(field, after)
            continue
        begin = _last_blank_line(data, end, at)
        end = _event_end(data, after)
        yield begin, end
        at = data.find(field, end)


def _is_null(data: bytes, after_name: int) -> bool:
    return data[after_name : after_name + 8].lstrip(b": ").startswith(b"n")


def _event_end(data: bytes, start: int) -> int:
    closing = _BLANK_LINE.search(data, start)
    return closing.end() if closing is not None else len(data)


def _last_blank_line(data: bytes, start: int, stop: int) -> int:
    """Behind the last blank line between two places, or `start` if there is none."""
    for blank in BLANK_LINES:
        at = data.rfind(blank, start, stop)
        if at >= 0:
            start = at + len(blank)
    return start


def event_data(event: bytes) -> bytes | None:
    """The data lines of one event joined by line feeds; None for comments and events without data."""
    lines = [line[6:] if line[5:6] == b" " else line[5:] for line in _LINE.split(event) if line.startswith(b"data:")]
    if not lines:
        return None
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def has_done(block: bytes) -> bool:
    """Whether one of these whole lines is the `[DONE]` that ends OpenAI's streams."""
    at = block.rfind(DONE)
    while at >= 0:
        # The word may also stand in a text; a line of its own it is only right behind `data:`.
        begin = at - (6 if block[at - 1 : at] == b" " else 5)
        if begin >= 0 and block.startswith(b"data:", begin) and (begin == 0 or block[begin - 1] in b"\r\n"):
            return True
        at = block.rfind(DONE, 0, at)
    return False


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
