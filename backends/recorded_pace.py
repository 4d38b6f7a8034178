"""When the parts of an answer came, so that it can be given again at the same pace."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate

import msgspec

from backends.clock import Clock
from backends.sse import split_events
from backends.stream import StreamEnd

_MICROSECONDS = 1_000_000
_MAX_US = 2**32 - 1
_EVENT_BYTES = 4


class RecordedPace(msgspec.Struct, frozen=True, array_like=True):
    """Microseconds from the question to the head of its answer, and to the end of each event of a stream.

    `events` are unsigned 32-bit numbers of this machine's order; a whole answer has none.
    """

    head_us: int
    events: bytes = b""

    @property
    def head_s(self) -> float:
        """Seconds to the head; of a whole answer to all of it."""
        return self.head_us / _MICROSECONDS

    def without(self, position: int) -> RecordedPace:
        """That of the stream without the event at that position."""
        start = position * _EVENT_BYTES
        return RecordedPace(self.head_us, self.events[:start] + self.events[start + _EVENT_BYTES :])

    @property
    def events_s(self) -> list[float]:
        """Seconds to the end of each event."""
        return [each / _MICROSECONDS for each in memoryview(self.events).cast("I")]


class Stopwatch:
    """Runs from the question on; as the tap of a stream it notes when each piece passes.

    `replays` is the tempo of a stored answer, where one is found; who started the watch then holds it back.
    """

    __slots__ = ("_began", "_clock", "_ends", "_head_us", "_num_bytes", "_times_us", "replays")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._head_us = 0
        self._num_bytes = 0
        self._ends: list[int] = []
        self._times_us: list[int] = []
        self.replays: RecordedPace | None = None

    @property
    def began(self) -> float:
        """The clock's time at the question."""
        return self._began

    def note_head(self) -> None:
        """The head of the answer is here; its stream follows."""
        self._head_us = self._now_us()

    def feed(self, piece: bytes) -> None:
        """One piece passes."""
        self._num_bytes += len(piece)
        self._ends.append(self._num_bytes)
        self._times_us.append(self._now_us())

    def end(self, how: StreamEnd) -> None:
        """Nothing more passes."""

    def of_body(self) -> RecordedPace:
        """The tempo of a whole answer that has come just now."""
        return RecordedPace(self._now_us())

    def of_events(self, body: bytes) -> RecordedPace:
        """The tempo of the stream whose pieces were `body`: an event comes with the piece that ends it."""
        ends = accumulate(map(len, split_events(body)))
        times = array("I", (self._times_us[bisect_left(self._ends, end)] for end in ends))
        return RecordedPace(self._head_us, times.tobytes())

    def _now_us(self) -> int:
        return min(int((self._clock.now() - self._began) * _MICROSECONDS), _MAX_US)
