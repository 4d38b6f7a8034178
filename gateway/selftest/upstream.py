"""A lying upstream: a server on loopback that answers each request as a `Lie` says, and remembers all requests.

async with LyingUpstream() as upstream:
    upstream.next(Lie(status=429, headers=(("retry-after", "1"),)))           # the next answer; then the usual one
    upstream.usual = Lie(pieces=chat_pieces(), stop_after=3, stop="reset")    # every answer without one of its own
    upstream.plan = lambda asked: Lie(...) if b"gpt-4" in asked.body else None
    ...
    upstream.requests[-1].gone_s                                                 # when the gateway hung up on it
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal, Self, cast

from gateway.selftest.answers import error_body, honest

_RESET = struct.pack("ii", 1, 0)
_MAX_REMEMBERED = 5000

Framing = Literal["chunked", "length", "close"]
Stop = Literal["close", "reset", "stall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """How one request is answered; by default correctly, with the kind of answer that was requested.

    `delay_s` is before the head, `first_s` between head and body, `pause_s` between pieces. With `stop_after` so many
    pieces are sent (-1: not even the head) and then the connection is closed, reset, or left silent for `stall_s`.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...] | None = None
    """The body, written piece by piece. None: the correct answer, or an OpenAI error if `status` is an error."""
    content_type: str | None = None
    framing: Framing | None = None
    """None: chunked for streams, a content length for everything else."""
    delay_s: float = 0.0
    first_s: float = 0.0
    pause_s: float = 0.0
    stop_after: int | None = None
    stop: Stop = "close"
    stall_s: float = math.inf
    raw: bytes | None = None
    """If given, it replaces all of the above: these bytes are sent, then the connection is closed."""


HONEST = Lie()


@dataclass(slots=True)
class ReceivedRequest:
    """One received request, and what has become of its answer. Times are those of `time.monotonic`."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    at_s: float
    num_pieces: int = 0
    """Pieces of the answer that have been written."""
    gone_s: float | None = None
    """When the gateway closed the connection before the answer was complete."""
    is_answered: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> str | None:
        """The first value of that (lower-case) field."""
        return next((value for key, value in self.headers if key == name), None)

    async def wait_gone(self, timeout_s: float) -> float:
        """Wait until the gateway closes the connection early; when it did. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self.gone_s is None:
                self.news.clear()
                await self.news.wait()
        return self.gone_s


class LyingUpstream:
    """Listens on a free port of loopback while entered. `url` is the base URL for a policy."""

    def __init__(self) -> None:
        self.usual = HONEST
        self.plan: Callable[[ReceivedRequest], Lie | None] | None = None
        """Called first for each request; where it returns None, the queue and then `usual` decide."""
        self.requests: deque[ReceivedRequest] = deque(maxlen=_MAX_REMEMBERED)
        self.num_requests = 0
        self.num_connections = 0
        self.num_in_flight = 0
        self.most_in_flight = 0
        self.port = 0
        self._queue: deque[Lie] = deque()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The base URL, ending in /v1."""
        return f"http://127.0.0.1:{self.port}/v1"

    def next(self, *lies: Lie) -> None:
        """Answer the next requests with these lies, in this order."""
        self._queue.extend(lies)

    def forget(self) -> None:
        """Answer correctly again, and forget all requests."""
        self.usual, self.plan = HONEST, None
        self._queue.clear()
        self.requests.clear()
        self.num_requests = self.most_in_flight = 0

    async def kill(self) -> None:
        """Look like a server after kill -9: reset every connection, close the port."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.reset()
        await asyncio.sleep(0)

    async def start(self) -> None:
        """Listen; after `kill` again on the same port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, "127.0.0.1", self.port, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connection(self) -> _Connection:
        self.num_connections += 1
        return _Connection(self._connections, self._begin)

    def _begin(self, request: ReceivedRequest, connection: _Connection) -> None:
        self.requests.append(request)
        self.num_requests += 1
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        lie = self.plan(request) if self.plan is not None else None
        if lie is None:
            lie = self._queue.popleft() if self._queue else self.usual
        task = asyncio.get_running_loop().create_task(self._answer(lie, request, connection))
        connection.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, lie: Lie, request: ReceivedRequest, connection: _Connection) -> None:
        try:
            with suppress(ConnectionError):
                await _send_answer(lie, request, connection)
        finally:
            self.num_in_flight -= 1


async def _send_answer(lie: Lie, request: ReceivedRequest, connection: _Connection) -> None:
    await asyncio.sleep(lie.delay_s)
    if lie.raw is not None:
        await connection.write(lie.raw)
        connection.close()
        return
    pieces, content_type = _body(lie, request)
    framing = lie.framing or ("length" if content_type == "application/json" else "chunked")
    if lie.stop_after != -1:
        await connection.write(_head(lie, pieces, content_type, framing))
        await asyncio.sleep(lie.first_s)
        for piece in pieces[: lie.stop_after]:
            if request.num_pieces and lie.pause_s:
                await asyncio.sleep(lie.pause_s)
            await connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" else piece)
            request.num_pieces += 1
    if lie.stop_after is not None:
        if lie.stop == "stall":
            with suppress(TimeoutError):
                async with asyncio.timeout(None if lie.stall_s == math.inf else lie.stall_s):
                    await connection.closed.wait()
            connection.close()
        elif lie.stop == "reset":
            connection.reset()
        else:
            connection.close()
        return
    request.is_answered = True
    if framing == "chunked":
        await connection.write(b"0\r\n\r\n")
    elif framing == "close":
        connection.close()


def _body(lie: Lie, request: ReceivedRequest) -> tuple[tuple[bytes, ...], str]:
    if lie.pieces is not None:
        is_stream = any(piece.startswith((b"data:", b"event:", b":")) for piece in lie.pieces[:1])
        return lie.pieces, lie.content_type or ("text/event-stream" if is_stream else "application/json")
    if lie.status >= 400:
        return (error_body(f"the upstream says {lie.status}"),), lie.content_type or "application/json"
    answer = honest(request.path.partition("?")[0], request.body)
    if isinstance(answer, bytes):
        return (answer,), lie.content_type or "application/json"
    return answer, lie.content_type or "text/event-stream"


def _head(lie: Lie, pieces: tuple[bytes, ...], content_type: str, framing: Framing) -> bytes:
    try:
        phrase = HTTPStatus(lie.status).phrase
    except ValueError:
        phrase = "Unheard Of"
    lines = [f"HTTP/1.1 {lie.status} {phrase}", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in lie.headers]
    if framing == "chunked":
        lines.append("transfer-encoding: chunked")
    elif framing == "length":
        lines.append(f"content-length: {sum(map(len, pieces))}")
    else:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class _Connection(asyncio.Protocol):
    """One connection of the gateway; its requests come one after the other."""

    def __init__(self, others: set[_Connection], begin: Callable[[ReceivedRequest, _Connection], None]) -> None:
        self.closed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._others = others
        self._begin = begin
        self._received = bytearray()
        self._current: ReceivedRequest | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=16 * 1024)
        self._others.add(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._parse()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
        self.closed.set()
        self._may_write.set()
        if self._current is not None and not self._current.is_answered:
            self._current.gone_s = time.monotonic()
            self._current.news.set()
            if self.task is not None:
                self.task.cancel()

    async def write(self, data: bytes) -> None:
        """Write bytes, as fast as the gateway reads them. Raises: ConnectionError."""
        if self.closed.is_set():
            raise ConnectionResetError
        self._transport.write(data)
        await self._may_write.wait()

    def close(self) -> None:
        """Close the connection normally."""
        self._mark_answered()
        self._transport.close()

    def reset(self) -> None:
        """Close by a TCP reset."""
        self._mark_answered()
        raw = self._transport.get_extra_info("socket")
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def _mark_answered(self) -> None:
        """The upstream itself closes the connection, so the gateway is not counted as gone."""
        if self._current is not None:
            self._current.is_answered = True

    def _parse(self) -> None:
        head, is_whole, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not is_whole:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        lengths = [value for name, value in fields if name == "content-length"]
        if lengths:
            length = int(lengths[0])
            if len(rest) < length:
                return
            body, left = rest[:length], rest[length:]
        elif any(name == "transfer-encoding" for name, _ in fields):
            found = _unchunked(rest)
            if found is None:
                return
            body, left = found
        else:
            body, left = b"", rest
        self._received = bytearray(left)
        method, _, target = first.partition(" ")
        self._current = ReceivedRequest(method, target.rpartition(" ")[0], fields, body, time.monotonic())
        self._begin(self._current, self)


def _unchunked(data: bytes) -> tuple[bytes, bytes] | None:
    """A chunked body and the bytes after it; None while it is incomplete."""
    body = b""
    while True:
        size, is_whole, data = data.partition(b"\r\n")
        if not is_whole:
            return None
        length = int(size.partition(b";")[0], 16)
        if len(data) < length + 2:
            return None
        if not length:
            return body, data[2:]
        body += data[:length]
        data = data[length + 2 :]
