"""One socket and the exchange it carries: HTTP/1.1 from the client's side, on asyncio.Protocol and llhttp.

Built for cost: no timer, task or object per read. An exchange has one deadline field that the pool's sweeper compares
with the clock, and all body bytes of one socket read are handed over as one piece.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, cast

import httptools

from backends.clock import Clock
from backends.errors import (
    FirstTokenTimeout,
    StreamStalled,
    TotalTimeout,
    UpstreamCut,
    UpstreamError,
    UpstreamGarbage,
)
from backends.http.wire import Limits
from backends.protocol import Headers

MAX_FRAMING_BYTES = 64 * 1024
"""Bound of a header section, and of trailers and chunk framing that bring no body byte."""

HIGH_WATER_BYTES = 256 * 1024
"""Unread body beyond this stops reading from the socket until the reader has caught up."""

WRITE_SLICE_BYTES = 256 * 1024
"""A larger body is written in slices, so that no more than about one of them waits in the socket's buffer."""


class RequestStalled(FirstTokenTimeout):
    """The upstream did not even take the whole request."""


class Owner(Protocol):
    """Whoever keeps connections and is told when one is free or gone."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""

    def finish(self, exchange: HttpExchange, connection: Connection, *, is_reusable: bool, has_failed: bool) -> None:
        """The exchange is over; its connection may carry another one only if `is_reusable`."""


class Connection(asyncio.Protocol):
    """A socket to one origin; carries one exchange at a time and outlives it where keep-alive allows."""

    __slots__ = ("exchange", "idle_since", "is_closed", "is_used", "is_write_paused", "loop", "owner", "transport")

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.exchange: HttpExchange | None = None
        self.owner: Owner | None = None
        self.idle_since = 0.0
        self.is_closed = False
        self.is_used = False
        self.is_write_paused = False

    def abort(self) -> None:
        """Close the socket at once; what is still to be written is dropped. Safe to call twice."""
        self.is_closed = True
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; without a question they end the connection."""
        exchange = self.exchange
        if exchange is None or exchange.is_complete:
            self.abort()
        else:
            exchange.feed(data)

    def eof_received(self) -> None:
        """The upstream will send nothing more, so nothing is left to wait for, not even our own unsent bytes."""
        if self.exchange is not None:
            self.exchange.end_of_connection(None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self.is_closed = True
        if self.exchange is not None:
            self.exchange.end_of_connection(exc)
        if self.owner is not None:
            self.owner.forget(self)

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        self.is_write_paused = True

    def resume_writing(self) -> None:
        """The socket's buffer has room again."""
        self.is_write_paused = False
        if self.exchange is not None:
            self.exchange.wake()


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
        "_owner",
        "_parser",
        "_pieces",
        "_waiter",
        "deadline",
        "headers",
        "idle_s",
        "is_complete",
        "keeps_alive",
        "on_body",
        "status",
    )

    def __init__(self, connection: Connection, clock: Clock, limits: Limits, now: float, *, is_head: bool) -> None:
        assert connection.owner is not None, "an exchange needs a connection of a pool"
        self.status = 0
        self.headers: Headers = []
        self.is_complete = False
        self.keeps_alive = False
        self._connection = connection
        self._owner: Owner | None = connection.owner
        self._clock = clock
        self._limits = limits
        self.idle_s = limits.idle_s
        self.deadline = min(now + limits.first_byte_s, limits.deadline)
        self._is_head = is_head
        self._is_sent = False
        self._is_paused = False
        self._framing_bytes = 0
        self._buffered_bytes = 0
        self._failure: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._fields: Headers = []
        self._pieces: list[bytes] = []
        # llhttp calls the list itself: a stream of small events costs no Python frame per event.
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        connection.exchange = self

    @property
    def is_untouched(self) -> bool:
        """Not one byte of an answer has come."""
        return self._framing_bytes == 0 and self.status == 0

    @property
    def is_sent(self) -> bool:
        """The whole request has been handed to the socket."""
        return self._is_sent

    @property
    def http_version(self) -> str:
        """The version the upstream answered with, such as "1.1"; known while the exchange is open."""
        return self._parser.get_http_version()

    # Sending

    def write(self, head: bytes, body: bytes) -> None:
        """Send head and body, which is at most `WRITE_SLICE_BYTES`, as one write."""
        self._connection.transport.writelines((head, body) if body else (head,))
        self._is_sent = True

    async def write_stream(self, head: bytes, pieces: AsyncGenerator[bytes | memoryview], stall_s: float) -> None:
        """Send head and pieces as fast as the upstream takes them; it may pause for `stall_s` seconds at a time.

        Stops early, without an error, where the answer comes first.
        Raises: RequestStalled, TotalTimeout, UpstreamCut, UpstreamGarbage, and what `pieces` raises.
        """
        connection = self._connection
        connection.transport.write(head)
        async with aclosing(pieces):
            async for piece in pieces:
                while connection.is_write_paused and self.status == 0 and self._failure is None:
                    self.deadline = min(self._clock.now() + stall_s, self._limits.deadline)
                    await self._wait()
                if self._failure is not None:
                    raise self._failure
                if self.status:
                    return
                connection.transport.write(piece)
        self._is_sent = True
        self.deadline = min(self._clock.now() + self._limits.first_byte_s, self._limits.deadline)

    async def wait_head(self) -> None:
        """Wait for the status and the headers.

        Raises: FirstTokenTimeout, TotalTimeout, UpstreamCut, UpstreamGarbage.
        """
        while self.status == 0:
            if self._failure is not None:
                raise self._failure
            await self._wait()

    # Reading

    async def read(self) -> bytes:
        """Bytes of the body that arrived since the last call, at least one; b"" at the end.

        Raises: UpstreamCut, UpstreamGarbage, StreamStalled, TotalTimeout. Cancelling closes the connection at once.
        """
        pieces = self._pieces
        while not pieces:
            if self.is_complete:
                return b""
            if self._failure is not None:
                raise self._failure
            self.deadline = min(self._clock.now() + self.idle_s, self._limits.deadline)
            await self._wait()
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._connection.transport.resume_reading()
        return piece

    async def body(self, max_bytes: int) -> bytes:
        """Everything to the end.

        Raises: as `read`, and UpstreamGarbage where it is longer than `max_bytes`.
        """
        parts = [await self.read()]
        num_bytes = len(parts[0])
        while not self.is_complete and num_bytes <= max_bytes:
            parts.append(await self.read())
            num_bytes += len(parts[-1])
        if num_bytes > max_bytes:
            error = UpstreamGarbage(f"the upstream's answer is longer than the allowed {max_bytes} bytes")
            self.fail(error)
            raise error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def aclose(self) -> None:
        """Give the connection back if the answer is whole, else close it at once. Safe to call twice."""
        self.close()

    def close(self) -> None:
        """`aclose` for those who cannot wait; it does not wait either."""
        owner = self._owner
        if owner is None:
            return
        self._owner = None
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
        owner.finish(self, connection, is_reusable=is_reusable, has_failed=has_failed)

    # What happens to it

    def feed(self, data: bytes) -> None:
        """Bytes from the socket."""
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.keeps_alive = False
            if not self.is_complete:
                self.fail(_garbage(error))
                return
        if self._pieces:
            if self._is_head:
                self._pieces.clear()
                self.keeps_alive = False
            self._framing_bytes = 0
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
            when = "in the middle of its answer" if self.status else "before it answered"
            cut = UpstreamCut(f"the upstream closed the connection {when}")
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
            self.fail(RequestStalled("the upstream stopped taking the request"))

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

    async def _wait(self) -> None:
        assert self._waiter is None, "one task reads an exchange at a time"
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._waiter = None

    def _ends_with_connection(self) -> bool:
        coding = b""
        for name, value in self.headers:
            if name == b"content-length":
                return False
            if name == b"transfer-encoding":
                coding = value
        return not coding.lower().endswith(b"chunked")

    # llhttp

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
        fields = self._fields
        self._fields = []
        if status < 200:
            if status == 101 or status < 100:
                raise _RefusedError(f"status {status}, which was not asked for")
            return
        if self._framing_bytes > MAX_FRAMING_BYTES and _size(fields) > MAX_FRAMING_BYTES:
            raise _RefusedError(f"a header section longer than {MAX_FRAMING_BYTES} bytes")
        self.headers = fields
        self.status = status
        self.keeps_alive = self._parser.should_keep_alive()
        self.is_complete = self._is_head

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was an informational one."""
        if self.status:
            self.is_complete = True


class _RefusedError(Exception):
    """Raised out of a callback: llhttp was content, we are not."""


def _size(fields: Headers) -> int:
    return sum(len(name) + len(value) + 4 for name, value in fields)


def _garbage(error: httptools.HttpParserError) -> UpstreamGarbage:
    reason = error.__context__ if isinstance(error.__context__, _RefusedError) else error
    return UpstreamGarbage(f"the upstream's answer is not HTTP/1.1 as expected: {reason}")
