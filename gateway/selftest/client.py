"""An HTTP client that sends exactly the bytes of a check, disconnects as it says, and records how an answer ended."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, cast

import httptools

_RESET = struct.pack("ii", 1, 0)
Fields = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a gateway listens. `prefix` is put before every path."""

    host: str
    port: int
    prefix: str = ""
    is_tls: bool = False


@dataclass(slots=True)
class ReceivedAnswer:
    """An answer. `is_whole`: it ended as its framing announced, not because the connection was closed."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    first_s: float = 0.0
    """Seconds from the request to the head."""
    total_s: float = 0.0
    """Seconds from the request to the end."""

    def header(self, name: str) -> str:
        """The first field of that (lower-case) name, "" where there is none."""
        return next((value for key, value in self.headers if key == name), "")

    def json(self) -> Any:
        """The decoded body; None where it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def error(self) -> dict[str, Any] | None:
        """The error object if the body is one in OpenAI's shape."""
        return _error_of(self.json())

    def events(self) -> list[str]:
        """The data of every event of a stream."""
        text = self.body.decode("utf-8", "replace").replace("\r\n", "\n")
        blocks = [[line for line in block.split("\n") if line.startswith("data:")] for block in text.split("\n\n")]
        return ["\n".join(line[5:].removeprefix(" ") for line in lines) for lines in blocks if lines]

    def chunks(self) -> list[dict[str, Any]]:
        """The events that are JSON objects."""
        found = []
        for data in self.events():
            try:
                value = json.loads(data)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def text(self) -> str:
        """The text of the model's answer, streamed or not."""
        if self.is_stream:
            pieces = [choice for chunk in self.chunks() for choice in chunk.get("choices") or ()]
            return "".join((choice.get("delta") or {}).get("content") or "" for choice in pieces)
        decoded = self.json()
        choices: list[Any] | None = decoded.get("choices") if isinstance(decoded, dict) else None
        return str((choices[0].get("message") or {}).get("content") or "") if choices else ""

    def finish_reasons(self) -> list[str]:
        """The finish reasons in a stream."""
        choices = [choice for chunk in self.chunks() for choice in chunk.get("choices") or ()]
        return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]

    @property
    def is_stream(self) -> bool:
        """Whether its content type is that of an event stream."""
        return self.header("content-type").startswith("text/event-stream")

    @property
    def is_done(self) -> bool:
        """Whether a stream contains `[DONE]`."""
        return "[DONE]" in self.events()

    @property
    def tells_error(self) -> bool:
        """Whether the client can see that something went wrong: an error status or an error event."""
        return self.status >= 400 or any("error" in chunk and chunk["error"] for chunk in self.chunks())

    @property
    def is_good(self) -> bool:
        """A success with its whole end."""
        return self.status == 200 and self.is_whole and not self.tells_error and (not self.is_stream or self.is_done)


class Client(asyncio.Protocol):
    """One connection with one exchange at a time. Its `on_` methods are callbacks of httptools' parser."""

    def __init__(self) -> None:
        self.current = ReceivedAnswer()
        self.is_closed = False
        self.on_bytes: Callable[[bytes], None] | None = None
        """Called with each piece of a body as it arrives."""
        self._news = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)
        self._sent_s = 0.0

    @classmethod
    async def open(cls, address: Address, *, receive_buffer: int | None = None) -> Self:
        """A new connection. Raises: OSError."""
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if address.is_tls else None
        if receive_buffer is None:
            _, client = await loop.create_connection(cls, address.host, address.port, ssl=context)
            return client
        raw = socket.socket()
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(raw, (address.host, address.port))
        _, client = await loop.create_connection(cls, sock=raw, ssl=context)
        return client

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._sent_s = time.monotonic()
        self.transport.write(data)

    async def answer(self, timeout_s: float = 30.0) -> ReceivedAnswer:
        """The answer once it has ended, in whichever way. Raises: TimeoutError."""
        await self.wait(lambda: self.current.is_whole, timeout_s)
        answer, self.current = self.current, ReceivedAnswer()
        answer.total_s = time.monotonic() - self._sent_s
        if not self.is_closed:
            self._parser = httptools.HttpResponseParser(self)
        return answer

    async def wait(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Wait until that holds or the connection is closed. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition() and not self.is_closed:
                self._news.clear()
                await self._news.wait()

    async def wait_body(self) -> None:
        """Wait for the first byte of a body. Raises: TimeoutError."""
        await self.wait(lambda: self.current.body)

    def reset(self) -> None:
        """Leave by a TCP reset."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def close(self) -> None:
        """Leave."""
        self.transport.abort()

    def stop_reading(self) -> None:
        """Take no more bytes off the connection."""
        self.transport.pause_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # Bytes that are not HTTP, or that follow the end of an answer, do not belong to it.
            self.transport.abort()
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._news.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.current.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.current.status = self._parser.get_status_code()
        self.current.first_s = time.monotonic() - self._sent_s

    def on_body(self, data: bytes) -> None:
        self.current.body += data
        if self.on_bytes is not None:
            self.on_bytes(data)

    def on_message_complete(self) -> None:
        if self.current.status >= 200:
            self.current.is_whole = True


def request_bytes(path: str, body: bytes = b"", headers: Fields = (), method: str = "POST") -> bytes:
    """A whole request of a client that sends JSON."""
    given = {name.lower() for name, _ in headers}
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in (("host", "127.0.0.1"),) if name not in given]
    if body and "content-type" not in given:
        lines.append("content-type: application/json")
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"content-length: {len(body)}\r\n\r\n")
    return "\r\n".join(lines).encode("latin-1") + body


def _error_of(decoded: object) -> dict[str, Any] | None:
    error = decoded.get("error") if isinstance(decoded, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    return error if isinstance(error.get("type"), str) and error.keys() >= {"param", "code"} else None
