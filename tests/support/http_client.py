"""An HTTP client whose every byte and every way of leaving a test decides, and that knows how an answer ended.

client = await HttpClient.open(gateway.port)
answer = await client.post("/v1/chat/completions", body)
assert answer.is_whole
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, cast

import httptools
import msgspec

_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Answer:
    """What came back. `is_whole`: its end was the one that its framing announced, not the connection's."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def header(self, name: bytes) -> bytes:
        """The first field of that (lower-case) name, b"" where there is none."""
        return next((value for key, value in self.headers if key == name), b"")

    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)

    def error(self) -> dict[str, Any] | None:
        """The error object, if the body is one exactly as OpenAI's are: message, type, param, code."""
        try:
            decoded = self.json()
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        error = decoded.get("error") if isinstance(decoded, dict) else None
        if not isinstance(error, dict) or not error.keys() >= {"message", "type", "param", "code"}:
            return None
        if not isinstance(error["message"], str) or not isinstance(error["type"], str):
            return None
        return error


class HttpClient(asyncio.Protocol):
    """One connection, one exchange at a time. Also llhttp's callback object."""

    def __init__(self) -> None:
        self.current = Answer()
        self.is_closed = False
        self.on_bytes: Callable[[bytes], None] | None = None
        """Called with each piece of a body as it arrives."""
        self._news = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int | None = None) -> Self:
        """A new connection to the loopback interface."""
        raw = socket.socket()
        raw.setblocking(False)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", port))
        _, client = await loop.create_connection(cls, sock=raw)
        return client

    async def post(
        self, path: str, body: bytes, headers: Iterable[tuple[str, str]] = (), timeout_s: float = 10.0
    ) -> Answer:
        """Send a POST and wait for its answer. Raises: TimeoutError."""
        self.send(request_bytes(path, body, headers))
        return await self.answer(timeout_s)

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.transport.write(data)

    async def answer(self, timeout_s: float = 10.0) -> Answer:
        """The answer once it has ended, in whichever way. Raises: TimeoutError."""
        await self.wait(lambda: self.current.is_whole, timeout_s)
        answer, self.current = self.current, Answer()
        if not self.is_closed:
            self._parser = httptools.HttpResponseParser(self)
        return answer

    async def wait(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until that holds or the connection is closed. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition() and not self.is_closed:
                self._news.clear()
                await self._news.wait()

    async def wait_body(self, num_bytes: int = 1) -> None:
        """Wait until so much of a body is here, or the connection is closed. Raises: TimeoutError."""
        await self.wait(lambda: len(self.current.body) >= num_bytes)

    def reset(self) -> None:
        """Leave by a TCP reset."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def close(self) -> None:
        """Leave by an orderly close."""
        self.transport.abort()

    def close_sending(self) -> None:
        """Leave by halves: nothing more will be sent, but the connection stays."""
        self.transport.write_eof()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say of themselves that they are some.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._news.set()

    def eof_received(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._news.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.current.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.current.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.current.body += data
        if self.on_bytes is not None:
            self.on_bytes(data)

    def on_message_complete(self) -> None:
        if self.current.status >= 200:
            self.current.is_whole = True


def request_bytes(path: str, body: bytes, headers: Iterable[tuple[str, str]] = (), method: str = "POST") -> bytes:
    """A whole request of a client that sends JSON."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"content-length: {len(body)}\r\n\r\n")
    return "\r\n".join(lines).encode("latin-1") + body


def chat_body(text: str = "hello", *, model: str = "m", stream: bool = False, **more: object) -> bytes:
    """A chat request."""
    message = {"role": "user", "content": text}
    return msgspec.json.encode({"model": model, "messages": [message], "stream": stream, **more})


class Connections:
    """Connections that are used again while they can be; every client of a worker in turn."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[HttpClient] = []

    async def ask(self, use: Callable[[HttpClient], Awaitable[Answer]]) -> Answer:
        """Do that with a connection that nobody else uses."""
        client = None
        while self._idle and (client is None or client.is_closed):
            client = self._idle.pop()
        if client is None or client.is_closed:
            client = await HttpClient.open(self._port)
        try:
            answer = await use(client)
        except BaseException:
            client.close()
            raise
        if not client.is_closed:
            self._idle.append(client)
        return answer

    async def post(self, path: str, body: bytes, timeout_s: float = 10.0) -> Answer:
        """As `HttpClient.post`."""
        return await self.ask(lambda client: client.post(path, body, timeout_s=timeout_s))

    async def aclose(self) -> None:
        """Close what is idle."""
        for client in self._idle:
            client.close()
        self._idle.clear()
        # One turn, in which the loop tells the transports that they are closed.
        await asyncio.sleep(0)
