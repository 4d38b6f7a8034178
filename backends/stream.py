"""One pump, many taps: the single object that reads an upstream's stream, and the typed way it ended."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from backends.errors import SlipstreamError, UpstreamCut


class StreamEnd(StrEnum):
    """How a stream ended. Only CLEAN may be cached or billed as complete."""

    CLEAN = "clean"
    UPSTREAM_CUT = "upstream_cut"
    STALL = "stall"
    CLIENT_GONE = "client_gone"
    ERROR = "error"


class Source(Protocol):
    """Where a stream's bytes come from."""

    async def read(self) -> bytes:
        """The bytes that have arrived since the last call, at least one; b"" at the end.

        Raises: UpstreamCut, StreamStalled, or another UpstreamError.
        """

    async def aclose(self) -> None:
        """Release the source; unread bytes are dropped and the work behind it is cancelled."""


class Tap(Protocol):
    """Sees every piece on its way past and how the stream ended. Must not block and must not raise."""

    def feed(self, piece: bytes) -> None:
        """One piece, as it came."""

    def end(self, how: StreamEnd) -> None:
        """Called exactly once, after the last piece."""


class Stream:
    """The pump. One reader calls `read` until b"" or an error; taps see each piece before the reader does.

    `is_complete` is asked at a clean end of the transport: False means that the answer itself stopped early
    (an SSE stream without its terminator), which counts as a cut. `first` is a piece already read off the source.
    """

    __slots__ = ("_first", "_is_complete", "_source", "end", "on_end", "taps")

    def __init__(
        self,
        source: Source,
        taps: list[Tap] | None = None,
        is_complete: Callable[[], bool] | None = None,
        first: bytes = b"",
    ) -> None:
        self._source = source
        self._first = first
        self._is_complete = is_complete
        self.taps: list[Tap] = taps if taps is not None else []
        self.end: StreamEnd | None = None
        # For who wants to know only how it ended; called after the taps.
        self.on_end: list[Callable[[StreamEnd], None]] = []

    async def read(self) -> bytes:
        """The next piece, b"" at a clean end.

        Raises: UpstreamCut, StreamStalled or another SlipstreamError; `end` says which way it ended.
        """
        if self._first and self.end is None:
            piece, self._first = self._first, b""
        else:
            try:
                piece = await self._source.read()
                if not piece and self._is_complete is not None and self.end is None and not self._is_complete():
                    raise UpstreamCut("the upstream ended its stream before the answer was complete")
            except SlipstreamError as error:
                self._finish(StreamEnd(error.stream_end))
                raise
        if piece:
            for tap in self.taps:
                tap.feed(piece)
        else:
            self._finish(StreamEnd.CLEAN)
        return piece

    async def aclose(self, how: StreamEnd = StreamEnd.CLIENT_GONE) -> None:
        """Stop reading. `how` is recorded if the stream had not ended by itself. Safe to call twice."""
        self._finish(how)
        await self._source.aclose()

    def _finish(self, how: StreamEnd) -> None:
        if self.end is None:
            self.end = how
            for tap in self.taps:
                tap.end(how)
            for tell in self.on_end:
                tell(how)
