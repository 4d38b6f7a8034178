"""Answers to clients of HTTP/1.0, which know no chunks: a body without a length ends where its connection does.

RFC 9112, sections 6.1 and 6.3. uvicorn frames such a body in chunks for every client, which these take for its bytes.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Unchunked:
    """The application as it answers one request of such a client, whose `cycle` it is; what it says is not changed."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._ends_with_connection = False
        self._tells_its_end = False
        # RFC 9110, section 10.1.1: the client would read an interim answer as the final one.
        cycle.waiting_for_100_continue = False
        cycle.keep_alive = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. A body that breaks off ends with a reset where its own bytes do not show that it is not whole."""

        async def send_unchunked(message: Message) -> None:
            self._frame(message)
            await send(message)

        try:
            await self._app(scope, receive, send_unchunked)
        finally:
            is_cut = self._ends_with_connection and not self._cycle.response_complete
            if is_cut and not self._tells_its_end and not self._cycle.disconnected:
                raw = self._cycle.transport.get_extra_info("socket")
                # It may have just been closed, which nobody is told of before the next turn of the event loop.
                with suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    def _frame(self, message: Message) -> None:
        """Tell the cycle not to frame the body that is announced, or that this is its end."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            fields = dict(message.get("headers", ()))
            if b"content-length" not in fields:
                self._ends_with_connection = True
                # Events have an end of their own, and one of ours says why it does not come.
                is_coded = fields.get(b"content-encoding", b"identity") != b"identity"
                self._tells_its_end = not is_coded and fields.get(b"content-type", b"").startswith(b"text/event-stream")
                cycle.chunked_encoding = False
                cycle.expected_content_length = sys.maxsize
        elif self._ends_with_connection and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
