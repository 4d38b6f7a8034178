"""Takes the usage chunk out of a stream whose client did not ask for it.

The leaf asks the upstream for usage on every stream, so that streams are accounted like whole answers; what the
client sees must not change for that.
"""

from __future__ import annotations

import re

import jiter

from backends.sse import event_data, find_events, whole_events_end

_MAX_HELD_BYTES = 64 * 1024
_USAGE_OBJECT = re.compile(rb'"usage":\s*\{')


class UsageChunkFilter:
    """Pieces in, pieces out, without events whose `choices` are empty and whose `usage` is an object.

    An unfinished event waits for its rest, at most 64 KiB of it: a usage chunk is never that long.
    """

    __slots__ = ("_held", "_passing")

    def __init__(self) -> None:
        self._held = b""
        self._passing = False

    def feed(self, piece: bytes) -> bytes:
        """What may be sent on now; perhaps nothing yet."""
        if self._held:
            piece = self._held + piece
            self._held = b""
        end = whole_events_end(piece)
        if end < len(piece):
            if (self._passing and not end) or len(piece) - end > _MAX_HELD_BYTES:
                self._passing = True
            else:
                self._passing = False
                piece, self._held = piece[:end], piece[end:]
        else:
            self._passing = False
        if b'"usage"' not in piece:
            return piece
        kept = []
        kept_until = 0
        for begin, end in find_events(piece, _USAGE_OBJECT):
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
