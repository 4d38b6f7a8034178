"""A line of an event stream that is too long to be held, as a short one that says the same to a meter.

The last event of a response repeats all that was asked and answered, and says at its beginning what it is and at its
end what was used: it may have any length, and is read as it passes.
"""

from __future__ import annotations

from backends.http.metering.json_fields import FieldScanner, Wanted

_DATA = b"data:"
_OF_ANSWERS: Wanted = {b"usage": None, b"service_tier": None}
_WANTED: Wanted = {**_OF_ANSWERS, b"type": None, b"error": None, b"timings": None, b"response": _OF_ANSWERS}
_TAIL_BYTES = 16 * 1024


class LongLine:
    """Fed with the pieces of one line. `keeps_tail`: its end is kept too, where chats say why an answer is finished,
    inside of an array.
    """

    __slots__ = ("_num_kept", "_parts", "_scanner", "_tail_bytes")

    def __init__(self, *, keeps_tail: bool) -> None:
        self._scanner: FieldScanner | None = None
        self._tail_bytes = _TAIL_BYTES if keeps_tail else 0
        self._parts: list[bytes] = []
        self._num_kept = 0

    def feed(self, piece: bytes) -> None:
        """More of the line, without its end; the first piece has its beginning."""
        if self._scanner is None:
            self._scanner = FieldScanner(_WANTED)
            # Of a line that is no data nothing is read.
            self._scanner.feed(piece[len(_DATA) :] if piece.startswith(_DATA) else b"-")
        else:
            self._scanner.feed(piece)
        self._parts.append(piece)
        self._num_kept += len(piece)
        if self._num_kept > 2 * _TAIL_BYTES:
            self._parts = [self._end()]
            self._num_kept = len(self._parts[0])

    def shortened(self, line_end: bytes) -> bytes:
        """What is known of it: its end, as a line that is no data, and the fields that are wanted, as one that is."""
        found = self._scanner.found if self._scanner is not None else {}
        data = b"data: {%b}" % b",".join([b'"%b":%b' % field for field in found.items()]) if found else b""
        # The blank keeps the end of the line from looking like the beginning of one.
        return b" " + self._end() + line_end + data if self._tail_bytes else data

    def _end(self) -> bytes:
        return b"".join(self._parts)[-self._tail_bytes :] if self._tail_bytes else b""
