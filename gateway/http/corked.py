"""A transport that sends the head of an answer together with the first bytes of its body, and can hold its end back.

After the client has disconnected, writes are dropped instead of raising.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "


class CorkedTransport:
    """A transport that holds a head until the next write, or until the loop's next turn if none comes; and whatever is
    written between `hold` and `release`, with a close among it.
    """

    __slots__ = ("_closes", "_end", "_held", "_loop", "_transport", "_write", "pause_reading", "resume_reading")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self._loop = loop
        self._held = b""
        self._end: list[bytes | memoryview] | None = None
        self._closes = False
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, or hold a head."""
        if not self._held and data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self.write_rest(data)

    def write_rest(self, data: bytes | memoryview) -> None:
        """Write bytes that do not begin with a head."""
        if self._held:
            data = b"".join((self._held, data))
            self._held = b""
        self._write(data)

    def hold(self) -> None:
        """Keep what is written from now on."""
        if self._end is None and self._write is not _drop:
            self._end = []
            self._write = self._end.append

    def release(self) -> None:
        """Write what was kept, and close if that was asked for."""
        end, self._end = self._end, None
        if end is None:
            return
        self._write = self._transport.write
        if end:
            self._write(b"".join(end))
        if self._closes:
            self._transport.close()

    def lose(self) -> None:
        """The client has disconnected: drop further writes, for which uvloop's transports would raise."""
        self._write = _drop
        self._end = None

    def close(self) -> None:
        """Close after what was held is on its way."""
        self._flush()
        self._closes = True
        if self._end is None:
            self._transport.close()

    def is_closing(self) -> bool:
        """Whether it was closed, by whoever it was."""
        return self._closes or self._transport.is_closing()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._write(held)


def _drop(data: bytes | memoryview) -> None:
    """Write nothing: the client has disconnected."""
