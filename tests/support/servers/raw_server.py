"""A server whose every byte a test decides: one coroutine per connection, on a real socket, with or without TLS.

async def answer(peer: Peer) -> None:
    await peer.request()
    peer.send(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nhi")

async with RawServer(answer) as server:
    ...  # requests to server.base_url
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from backends.http.wire import TimeLimits, Wire


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One request as it came; `body` is without its chunks."""

    head: bytes
    body: bytes

    def field(self, name: bytes) -> list[bytes]:
        """Every value of the field of that (lower-case) name."""
        fields = [line.partition(b": ") for line in self.head.split(b"\r\n")[1:]]
        return [value for key, _, value in fields if key.lower() == name]


class Peer:
    """The server's end of one connection. `number` counts connections from 0."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self._writer = writer

    async def request(self) -> RawRequest:
        """The next request. Raises: asyncio.IncompleteReadError where the client leaves instead."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        request = RawRequest(head, b"")
        if request.field(b"transfer-encoding"):
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
        else:
            body = await self.reader.readexactly(int((request.field(b"content-length") or [b"0"])[0]))
        return RawRequest(head, body)

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)

    async def send_split(self, *pieces: bytes) -> None:
        """Write each piece so that the client reads it by itself: the next is written once this one has gone out."""
        for piece in pieces:
            self._writer.write(piece)
            # Two turns of the loop that both ends share: one to send, one for the other end to read.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    @property
    def num_unsent(self) -> int:
        """Bytes that the client's end has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait while the client takes no more."""
        await self._writer.drain()

    async def wait_gone(self) -> bool:
        """Wait until the client closes; whether it did so by a reset. What it still sends is dropped."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionResetError:
            return True
        return False

    def close(self) -> None:
        """Close orderly, after what is still to be written."""
        self._writer.close()

    def reset(self) -> None:
        """Close by a TCP reset."""
        linger_for_no_time = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_for_no_time)
        self._writer.transport.abort()


class RawServer:
    """Listens on a free port of the loopback interface, or on the `port` that was set, while entered.

    A bug in `serve` is raised at the end.

    About twice `limit` bytes that `serve` does not read are taken off the network all the same.
    """

    def __init__(
        self, serve: Callable[[Peer], Awaitable[None]], *, tls: ssl.SSLContext | None = None, limit: int = 1 << 24
    ) -> None:
        self.num_connections = 0
        self.port = 0
        self._serve = serve
        self._tls = tls
        self._limit = limit
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def base_url(self) -> str:
        """The origin."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, ssl=self._tls, limit=self._limit
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            # asyncio's own transports cannot be aborted once they have closed after writing their rest.
            with suppress(AttributeError):
                writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        await self._server.wait_closed()
        for outcome in outcomes:
            if isinstance(outcome, Exception) and exc_info[0] is None:
                raise outcome

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self.num_connections, reader, writer)
        self.num_connections += 1
        self._writers.append(writer)
        self._tasks.append(asyncio.get_running_loop().create_task(self._run(peer, writer)))

    async def _run(self, peer: Peer, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            # The client left; whether it should have is the test's business.
            pass
        finally:
            writer.close()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def always(answer: bytes, seen: list[RawRequest] | None = None) -> Callable[[Peer], Awaitable[None]]:
    """To be served: give every request this answer and keep the connection; the requests are added to `seen`."""

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if seen is not None:
                seen.append(request)
            peer.send(answer)

    return serve


async def fetch(wire: Wire, method: str = "POST", body: bytes = b"") -> tuple[int, bytes]:
    """One whole exchange, closed afterwards: status and body."""
    exchange = await wire.send(method, b"/v1/x", [], body, generous())
    try:
        return exchange.status, await exchange.body(1 << 24)
    finally:
        await exchange.aclose()


def generous(**changes: float) -> TimeLimits:
    """Limits that no test reaches, but for the given ones."""
    return TimeLimits(**{"connect_s": 5.0, "first_byte_s": 5.0, "idle_s": 5.0, "deadline": float("inf"), **changes})
