"""One socket to an origin: an asyncio protocol that hands what happens to it to whatever exchange it carries now.

Knows nothing of HTTP; `http1_exchange.py` does, and `pool.py` keeps the connections.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Protocol, cast


class Receiver(Protocol):
    """Who is told what happens to a connection while it carries an exchange."""

    is_complete: bool
    """Nothing more is expected: further bytes end the connection."""

    def feed(self, data: memoryview) -> None:
        """Bytes from the socket, to be used up at once."""

    def end_of_connection(self, error: Exception | None) -> None:
        """The other end closed the connection (`error` None) or it broke. May be called twice."""

    def wake(self) -> None:
        """The socket takes bytes again."""


class ConnectionOwner(Protocol):
    """Who keeps a connection and is told when it is gone."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""


_INT = struct.Struct("i")
READ_BYTES = 32 * 1024
"""The most that is read at once: what a slow reader leaves unread stays in the kernel and with the upstream."""


class Connection(asyncio.BufferedProtocol):
    """A socket to one origin; carries one exchange at a time and outlives it where keep-alive allows.

    `buffer` (`READ_BYTES` long) is where bytes arrive; one serves all connections, since it is empty between reads.
    """

    __slots__ = (
        "_buffer",
        "exchange",
        "idle_since",
        "is_closed",
        "is_used",
        "is_write_paused",
        "loop",
        "owner",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.loop = asyncio.get_running_loop()
        self.exchange: Receiver | None = None
        self.owner: ConnectionOwner | None = None
        self.idle_since = 0.0
        self.is_closed = False
        self.is_used = False
        self.is_write_paused = False

    def abort(self) -> None:
        """Close the socket at once; what is still to be written is dropped. Safe to call twice."""
        self.is_closed = True
        self.transport.abort()

    def has_unread(self, *, is_orderly: bool) -> bool:
        """Whether the other end, which has closed, cannot have read all that was written. False where that is not sure.

        The packet of an orderly close says how much had arrived until then, and the kernel what of ours that leaves; a
        reset is not read so far.
        """
        if self.transport.get_write_buffer_size():
            return True
        raw = self.transport.get_extra_info("socket")
        if not is_orderly or raw is None:
            return False
        try:
            sent = fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        except OSError:
            return False
        return bool(_INT.unpack(sent)[0] > 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of the answer have arrived; without a question they end the connection."""
        exchange = self.exchange
        if exchange is None or exchange.is_complete or self.is_closed:
            self.abort()
        else:
            exchange.feed(self._buffer[:nbytes])

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
