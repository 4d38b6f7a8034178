"""One pump, many taps: the single object that reads an upstream's stream, and the typed way it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

from backends.errors import SlipstreamError, UpstreamCut, UpstreamError


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


Receive = Callable[[bytes], bool]
"""Takes a piece; False asks for a pause."""

Push = Callable[[Receive], Awaitable[bool]]
"""Hands pieces to a receiver from where they arrive, with no task in between, until it asks for a pause (True: there
may be more) or the end (False). Raises like `Source.read`."""


class Tap(Protocol):
    """Sees every piece on its way past and how the stream ended. Must not block and must not raise."""

    def feed(self, piece: bytes) -> None:
        """One piece, as it came."""

    def end(self, how: StreamEnd) -> None:
        """Called exactly once, after the last piece."""


class Stream:
    """The pump. One reader calls `read` until b"" or an error, or `forward`; taps see each piece before it does.

    `is_complete` is asked at a clean end of the transport: False means that the answer itself stopped early
    (an SSE stream without its terminator), which counts as a cut. `first` is a piece already read off the source,
    `push` the source's own way of handing pieces on, where it has a cheaper one than being read. `is_over` is asked
    when the reader leaves or the transport fails: whether what has passed is the whole answer. `has_failed` is asked
    when the reader leaves: whether what has passed says that there will be no whole answer, which is why most leave.
    """

    __slots__ = (
        *("_first", "_has_failed", "_is_complete", "_is_over", "_push", "_receive", "_source"),
        *("beginning", "end", "num_bytes", "on_end", "taps"),
    )

    def __init__(
        self,
        source: Source,
        taps: list[Tap] | None = None,
        is_complete: Callable[[], bool] | None = None,
        first: bytes = b"",
        push: Push | None = None,
        is_over: Callable[[], bool] | None = None,
        has_failed: Callable[[], bool] | None = None,
    ) -> None:
        self._source = source
        self._first = first
        self._push = push
        self._is_complete = is_complete
        self._is_over = is_over
        self._has_failed = has_failed
        self.taps: list[Tap] = taps if taps is not None else []
        self.end: StreamEnd | None = None
        self.beginning = b""
        """The first piece that has passed."""
        self.num_bytes = 0
        """That have passed by now."""
        # For who wants to know only how it ended; called after the taps.
        self.on_end: list[Callable[[StreamEnd], None]] = []

    @property
    def is_over(self) -> bool:
        """Whether the whole answer has passed, though the transport has not ended: many clients leave at `[DONE]`."""
        return self._is_over is not None and self._is_over()

    async def read(self) -> bytes:
        """The next piece, b"" at a clean end.

        Raises: UpstreamCut, StreamStalled or another SlipstreamError; `end` says which way it ended.
        """
        if self._first and self.end is None:
            piece, self._first = self._first, b""
        else:
            try:
                piece = await self._source.read()
                if not piece:
                    self._check_complete()
            except SlipstreamError as error:
                self._fail(error)
                piece = b""
        if piece:
            if not self.num_bytes:
                self.beginning = piece
            self.num_bytes += len(piece)
            for tap in self.taps:
                tap.feed(piece)
        else:
            self._finish(StreamEnd.CLEAN)
        return piece

    async def read_all(self, max_bytes: int) -> bytes | None:
        """Every piece to the clean end; None as soon as they are longer together. Raises: as `read`."""
        pieces: list[bytes] = []
        num_bytes = 0
        while piece := await self.read():
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                return None
        return b"".join(pieces)

    async def peek(self, num_bytes: int = 0) -> bytes:
        """All that has arrived and was not read, once that is more than `num_bytes`; or all, where no more will come.

        It stays to be read, and taps have not seen it. Not after the first `read`. Raises: as `read`.
        """
        pieces, arrived = [self._first], len(self._first)
        while arrived <= num_bytes:
            try:
                piece = await self._source.read()
            except SlipstreamError as error:
                self._finish(StreamEnd(error.stream_end))
                raise
            if not piece:
                break
            pieces.append(piece)
            arrived += len(piece)
        self._first = b"".join(pieces)
        return self._first

    async def forward(self, receive: Receive) -> bool:
        """Hand every piece to `receive` as it arrives, until it asks for a pause (True) or a clean end (False).

        After a pause it may be called again. `receive` must not raise. Raises: as `read`.
        """
        if self._push is None:
            while piece := await self.read():
                if not receive(piece):
                    return True
            return False
        self._receive = receive
        if self._first and self.end is None:
            first, self._first = self._first, b""
            if not self._pass_on(first):
                return True
        try:
            if await self._push(self._pass_on):
                return True
            self._check_complete()
        except SlipstreamError as error:
            self._fail(error)
        self._finish(StreamEnd.CLEAN)
        return False

    async def aclose(self, how: StreamEnd = StreamEnd.CLIENT_GONE) -> None:
        """Stop reading. `how` is recorded if the stream had not ended by itself; who leaves an answer that is over has
        all of it, and who leaves one that has failed had to. Safe to call twice.
        """
        if self.end is None:
            if how is StreamEnd.CLIENT_GONE and self.is_over:
                how = StreamEnd.CLEAN
            elif how is StreamEnd.CLIENT_GONE and self._has_failed is not None and self._has_failed():
                how = StreamEnd.UPSTREAM_CUT
            self._finish(how)
        await self._source.aclose()

    def _pass_on(self, piece: bytes) -> bool:
        if not self.num_bytes:
            self.beginning = piece
        self.num_bytes += len(piece)
        for tap in self.taps:
            tap.feed(piece)
        return self._receive(piece)

    def _check_complete(self) -> None:
        if self._is_complete is not None and self.end is None and not self._is_complete():
            raise UpstreamCut("the upstream ended its stream before the answer was complete")

    def _fail(self, error: SlipstreamError) -> None:
        """End with it, unless it is only the transport that fails, behind the whole answer. Raises: the error."""
        if not (isinstance(error, UpstreamError) and self.is_over):
            self._finish(StreamEnd(error.stream_end))
            raise error

    def _finish(self, how: StreamEnd) -> None:
        if self.end is None:
            self.end = how
            for tap in self.taps:
                tap.end(how)
            told, self.on_end = self.on_end, []
            for tell in told:
                tell(how)
