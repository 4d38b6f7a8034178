"""One request and its answer on one connection: HTTP/1.1 from the client's side, with llhttp as the parser.

Built for cost: no timer, task or object per read. There is one deadline field, which the pool's sweeper compares with
the clock, and all body bytes of one socket read are handed over as one piece.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

import httptools

from backends.answer_budget import UNCOUNTED_BYTES, HeldAnswer
from backends.clock import Clock
from backends.errors import (
    FirstTokenTimeout,
    StreamStalled,
    TotalTimeout,
    UpstreamCut,
    UpstreamError,
    UpstreamGarbage,
)
from backends.http.connection import Connection
from backends.http.wire import TimeLimits
from backends.protocol import Headers
from backends.stream import Receive

MAX_FRAMING_BYTES = 64 * 1024
"""Bound of a header section, and of trailers and chunk framing that bring no body byte."""
HIGH_WATER_BYTES = 16 * 1024
"""Unread body beyond this stops reading from the socket until the reader has caught up."""
WRITE_SLICE_BYTES = 256 * 1024
"""A larger body is written in slices, so that no more than about one of them waits in the socket's buffer."""


class NeverRead(UpstreamCut):
    """The connection was closed before all of the request had arrived: nobody can have begun to work on it."""


class HomePool(Protocol):
    """Where the connection came from and may go back to."""

    def finish(self, exchange: HttpExchange, connection: Connection, *, is_reusable: bool, has_failed: bool) -> None:
        """The exchange is over; its connection is closed already unless it `is_reusable`."""


class HttpExchange:
    """One request and its answer; an `Exchange`. Whoever holds it closes it. One task reads at a time.

    Also llhttp's callback object: the `on_*` methods are called from inside `feed` and are nobody else's.
    """

    __slots__ = (
        "_buffered_bytes",
        "_clock",
        "_connection",
        "_failure",
        "_fields",
        "_framing_bytes",
        "_is_head",
        "_is_paused",
        "_is_sent",
        "_limits",
        "_parser",
        "_pieces",
        "_pool",
        "_receive",
        "_waiter",
        "deadline",
        "headers",
        "idle_s",
        "is_complete",
        "keeps_alive",
        "on_body",
        "status",
    )

    def __init__(
        self, connection: Connection, pool: HomePool, clock: Clock, limits: TimeLimits, *, is_head: bool = False
    ) -> None:
        self.status = 0
        self.headers: Headers = []
        self.is_complete = False
        self.keeps_alive = False
        self._connection = connection
        self._pool: HomePool | None = pool
        self._clock = clock
        self._limits = limits
        self.idle_s = limits.idle_s
        self.deadline = min(clock.now() + limits.first_byte_s, limits.deadline)
        self._is_head = is_head
        self._is_sent = False
        self._is_paused = False
        self._framing_bytes = 0
        self._buffered_bytes = 0
        self._failure: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._receive: Receive | None = None
        self._fields: Headers = []
        self._pieces: list[bytes] = []
        # llhttp calls the list itself: a stream of small events costs no Python frame per event.
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        connection.exchange = self

    def write(self, head: bytes, body: bytes) -> None:
        """Send head and body, which is at most `WRITE_SLICE_BYTES`, as one write."""
        transport = self._connection.transport
        transport.writelines((head, body) if body else (head,))
        self._is_sent = True
        if transport.is_closing():  # The write itself has failed.
            self.fail(NeverRead("the upstream had closed the connection"))

    async def write_slices(self, head: bytes, body: bytes) -> None:
        """Send a larger body as fast as the upstream takes it; it may pause for `first_byte_s` seconds at a time.

        Stops early, without an error, where the answer comes first.
        Raises: FirstTokenTimeout, TotalTimeout, UpstreamCut, UpstreamGarbage. Then, and when cancelled, close it.
        """
        connection, limits = self._connection, self._limits
        connection.transport.write(head)
        view = memoryview(body)
        for start in range(0, len(body), WRITE_SLICE_BYTES):
            while connection.is_write_paused and self.status == 0 and self._failure is None:
                self.deadline = min(self._clock.now() + limits.first_byte_s, limits.deadline)
                await self._next_event()
            if self._failure is not None:
                raise self._failure
            if self.status:
                return
            connection.transport.write(view[start : start + WRITE_SLICE_BYTES])
        self._is_sent = True
        self.deadline = min(self._clock.now() + limits.first_byte_s, limits.deadline)

    async def wait_head(self) -> None:
        """Wait for the status and the headers.

        Raises: FirstTokenTimeout, TotalTimeout, UpstreamCut, UpstreamGarbage. Then, and when cancelled, close it.
        """
        while self.status == 0:
            if self._failure is not None:
                raise self._failure
            await self._next_event()

    async def read(self) -> bytes:
        """Bytes of the body that arrived since the last call, at least one; b"" at the end.

        Raises: UpstreamCut, UpstreamGarbage, StreamStalled, TotalTimeout. Cancelling closes the connection at once.
        """
        while not self._pieces:
            if self.is_complete:
                return b""
            await self._wait_more()
        return self._take()

    async def forward(self, receive: Receive) -> bool:
        """Hand pieces to `receive` as they arrive, until it asks for a pause (True) or the end (False).

        It is called from where the socket is read: an event of a stream costs neither a future nor a task switch.
        Raises: as `read`. Cancelling closes the connection at once.
        """
        self._receive = receive
        try:
            while self._receive is not None:
                if self._pieces:
                    if not receive(self._take()):
                        return True
                elif self.is_complete:
                    return False
                else:
                    await self._wait_more()
            return True
        finally:
            self._receive = None

    async def body(self, max_bytes: int, held: HeldAnswer | None = None) -> bytes:
        """See `Exchange.body`."""
        parts: list[bytes] = []
        num_bytes = 0
        while not self.is_complete and num_bytes <= max_bytes:
            parts.append(await self.read())
            num_bytes += len(parts[-1])
            if held is not None and num_bytes > UNCOUNTED_BYTES:
                await held.grow(num_bytes)
        # The last pieces need no wait, and nothing is read after them.
        parts += self._pieces
        self._pieces.clear()
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(whole) > max_bytes:
            error = UpstreamGarbage(f"the upstream's answer is longer than the allowed {max_bytes} bytes")
            self.fail(error)
            raise error
        return whole

    async def aclose(self) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Give the connection back if the answer is whole, else close it at once. Safe to call twice."""
        pool = self._pool
        if pool is None:
            return
        self._pool = None
        connection = self._connection
        connection.exchange = None
        has_failed = self._failure is not None
        # The parser refers back to this object; without the cycle both are freed at once.
        del self._parser
        is_reusable = (
            self.is_complete
            and self.keeps_alive
            and self._is_sent
            and not connection.is_closed
            and connection.transport.get_write_buffer_size() == 0
        )
        if not self.is_complete or self._pieces:
            # A reader who comes too late must not take the dropped rest for a clean end.
            self.is_complete = False
            self._pieces.clear()
            self._failure = self._failure or UpstreamCut("the answer was closed before it was read to its end")
            self.wake()
        if not is_reusable:
            connection.abort()
        elif self._is_paused:
            connection.transport.resume_reading()
        pool.finish(self, connection, is_reusable=is_reusable, has_failed=has_failed)

    def feed(self, data: memoryview) -> None:
        """Bytes from the socket; the parser copies what it keeps."""
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.keeps_alive = False
            if not self.is_complete:
                self.fail(_garbage(error))
                return
        if self._pieces:
            self._framing_bytes = 0
            if self._is_head:
                self._pieces.clear()
                self.keeps_alive = False
            elif (receive := self._receive) is not None:
                # Handed on at once, so never held: nothing to count.
                self.deadline = min(self._clock.now() + self.idle_s, self._limits.deadline)
                if not receive(self._take()):
                    self._receive = None
                elif not self.is_complete:
                    return
            else:
                self._buffered_bytes += len(data)
                if self._buffered_bytes > HIGH_WATER_BYTES and not self.is_complete and not self._is_paused:
                    self._is_paused = True
                    self._connection.transport.pause_reading()
        elif self._framing_bytes > MAX_FRAMING_BYTES and not self.is_complete:
            what = "trailers or chunk framing" if self.status else "header section"
            self.fail(UpstreamGarbage(f"the upstream's {what} is longer than {MAX_FRAMING_BYTES} bytes"))
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def end_of_connection(self, error: Exception | None) -> None:
        """The upstream closed the connection (`error` None) or it broke. Safe to call twice."""
        if self.is_complete:
            self.keeps_alive = False
        elif error is None and self._failure is None and self.status and self._ends_with_connection():
            self.is_complete = True
            self.keeps_alive = False
            self.wake()
        elif self._failure is None:
            cut = UpstreamCut("the upstream closed the connection in the middle of its answer")
            if self.status == 0 and self._framing_bytes == 0:
                kind = NeverRead if self._connection.has_unread(is_orderly=error is None) else UpstreamCut
                cut = kind("the upstream closed the connection before it answered")
            cut.__cause__ = error
            self.fail(cut)

    def expire(self, now: float) -> None:
        """`deadline` has passed; end the exchange if the upstream is to blame for it."""
        limits = self._limits
        if self.is_complete or self._failure is not None:
            self.deadline = math.inf
        elif now >= limits.deadline:
            self.fail(TotalTimeout("the upstream had not finished its answer when the call's time was up"))
        elif self._waiter is None or self._waiter.done():
            # Nobody is waiting for the upstream: the reader is the slow one, and its next wait sets a limit anew.
            self.deadline = limits.deadline
        elif self.status:
            self.fail(StreamStalled(f"the upstream was silent for {self.idle_s:g} s in the middle of its answer"))
        elif self._is_sent:
            self.fail(FirstTokenTimeout(f"the upstream did not begin to answer within {limits.first_byte_s:g} s"))
        else:
            self.fail(FirstTokenTimeout("the upstream stopped taking the request"))

    def fail(self, error: UpstreamError) -> None:
        """End the exchange with `error`, which readers get after what has already arrived; the connection is closed."""
        if self.is_complete or self._failure is not None:
            return
        self._failure = error
        self.deadline = math.inf
        self._connection.abort()
        self.wake()

    def wake(self) -> None:
        """Let the waiting task look again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait_more(self) -> None:
        """Wait for something to happen after the head. Raises: what `read` raises."""
        if self._failure is not None:
            raise self._failure
        self.deadline = min(self._clock.now() + self.idle_s, self._limits.deadline)
        try:
            await self._next_event()
        except asyncio.CancelledError:
            self.close()
            raise

    def _take(self) -> bytes:
        """What has arrived; there is something."""
        pieces = self._pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._connection.transport.resume_reading()
        return piece

    def _next_event(self) -> asyncio.Future[None]:
        """Done as soon as something has happened; who waits for it looks for itself what."""
        assert self._waiter is None or self._waiter.done(), "one task reads an exchange at a time"
        self._waiter = waiter = self._connection.loop.create_future()
        return waiter

    def _ends_with_connection(self) -> bool:
        coding = b""
        for name, value in self.headers:
            if name == b"content-length":
                return False
            if name == b"transfer-encoding":
                coding = value
        return not coding.lower().endswith(b"chunked")

    def on_message_begin(self) -> None:
        """A status line begins."""
        if self.is_complete:
            raise _RefusedError("bytes after the end of the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head, or of the trailers, which go nowhere."""
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        if not 200 <= status <= 599:
            if status == 101 or not 100 <= status < 200:
                raise _RefusedError(f"status {status}, which was not asked for")
            return
        # What was read with the head may be body.
        if self._framing_bytes > MAX_FRAMING_BYTES and sum(len(n) + len(v) + 4 for n, v in fields) > MAX_FRAMING_BYTES:
            raise _RefusedError(f"a header section longer than {MAX_FRAMING_BYTES} bytes")
        self.headers, self.status = fields, status
        # Fields that come from now on are trailers, and a length among those is not the body's: its end was there.
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True)
        # What a server sends behind a HEAD all the same, too late to be seen, would be the next caller's answer.
        self.keeps_alive = not self._is_head and self._parser.should_keep_alive()
        self.is_complete = self._is_head

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was an informational one."""
        if self.status:
            self.is_complete = True


class _RefusedError(Exception):
    """Raised out of a callback: llhttp was content, we are not."""


def _garbage(error: httptools.HttpParserError) -> UpstreamGarbage:
    reason = error.__context__ if isinstance(error.__context__, _RefusedError) else error
    return UpstreamGarbage(f"the upstream's answer is not HTTP/1.1 as expected: {reason}")
