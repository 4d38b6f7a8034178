"""Passes a stream on in whole events, and takes the usage chunk out where the client did not ask for it.

The leaf asks the upstream for usage on every stream, so that streams are accounted like whole answers; what the
client sees must not change for that. A stream that breaks inside of an event is shown up to the event before it, so
that the error event behind it can be read.
"""

from __future__ import annotations

import jiter

from backends.sse import event_data, find_events, whole_events_end

_MAX_HELD_BYTES = 64 * 1024
_USAGE = b'"usage"'


class UsageChunkFilter:
    """Pieces in, pieces out; with `hides_usage` without events of empty `choices` whose `usage` is an object.

    An unfinished event waits for its rest, at most 64 KiB of it: a usage chunk is never that long.
    """

    __slots__ = ("_held", "_hides_usage", "_passing")

    def __init__(self, *, hides_usage: bool = True) -> None:
        self._hides_usage = hides_usage
        self._held = b""
        self._passing = False

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
        if at < 0:
            return piece
        kept = []
        kept_until = 0
        for begin, end in find_events(piece, _USAGE, at):
            if _is_usage_chunk(piece[begin:end]):
                kept.append(piece[kept_until:begin])
                kept_until = end
        return b"".join((*kept, piece[kept_until:]))

    def rest(self) -> bytes:
        """What was held when the stream ended."""
        held, self._held = self._held, b""
        return held


def _is_usage_chunk(event: bytes) -> bool:
    data = event_data(event)
    if data is None:
        return False
    try:
        chunk = jiter.from_json(data)
    except ValueError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
