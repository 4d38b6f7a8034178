"""A transport that sends the head of an answer together with the first bytes of its body.

After the client has disconnected, writes are dropped instead of raising.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "


class CorkedTransport:
    """A transport that holds a head until the next write, or until the loop's next turn if none comes."""

    __slots__ = ("_held", "_loop", "_transport", "_write", "is_closing", "pause_reading", "resume_reading")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self._loop = loop
        self._held = b""
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, or hold a head."""
        if self._held:
            data = self._held + data
            self._held = b""
            self._write(data)
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._write(data)

    def write_rest(self, data: bytes) -> None:
        """Write bytes that do not begin with a head."""
        if self._held:
            self.write(data)
        else:
            self._write(data)

    def lose(self) -> None:
        """The client has disconnected: drop further writes, for which uvloop's transports would raise."""
        self._write = _drop

    def close(self) -> None:
        """Close after what was held is on its way."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._write(held)


def _drop(data: bytes) -> None:
    """Write nothing: the client has disconnected."""
