"""A client's connection: uvicorn's protocol with two things that ASGI has no cheap way for.

The head of an answer goes out together with the first bytes of its body (one system call and one packet instead of
two), and a call learns at once that its client has left, without a task that waits for it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "
_STATE_KEY = "slipstream.connection"


class ClientConnection(HttpToolsProtocol):
    """One connection. Endpoints find it in their scope with `connection_of`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.answering: set[asyncio.Task[Any]] = set()
        self.is_gone = False
        self.app_state = {**self.app_state, _STATE_KEY: self}
        super().connection_made(_CorkedTransport(transport, self.loop))  # type: ignore[arg-type]  # by its methods

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: whatever is being answered is cancelled."""
        self.is_gone = True
        super().connection_lost(exc)
        for task in self.answering:
            task.cancel()


def connection_of(scope: Scope) -> ClientConnection:
    """The connection that a request came on."""
    connection: ClientConnection = scope["state"][_STATE_KEY]
    return connection


class _CorkedTransport:
    """A transport that holds a head until the next write, or until the loop's next turn if none comes."""

    __slots__ = ("_held", "_loop", "_transport", "is_closing", "pause_reading", "resume_reading")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
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
            self._transport.write(data)
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close after what was held is on its way."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)
