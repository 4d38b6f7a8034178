"""An OpenAI-compatible upstream on a real socket that misbehaves on request, and knows which clients left.

async with OpenAIServer() as server:
    server.next(Behaviour(cut_after_events=3), error(429, retry_after="2"))
    ...  # two requests to server.base_url
    assert server.requests[0].json()["stream"] is True
"""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, Self

import msgspec

from backends.errors import InvalidRequest, error_body
from backends.operations import Operation
from backends.protocol import Call, Facts
from backends.scripted.answers import answer

Framing = Literal["chunked", "length", "eof"]

_OPERATIONS = {
    "/chat/completions": Operation.CHAT,
    "/completions": Operation.COMPLETION,
    "/embeddings": Operation.EMBEDDING,
    "/responses": Operation.RESPONSES,
}
_RESET = struct.pack("ii", 1, 0)
_JSON = "application/json"
_SSE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How one request is answered; with nothing set, as OpenAI does, repeating what the client said.

    The pieces that `cut`, `stall` and `event_delay_s` speak of are the events of a stream; any other body is one.
    """

    text: str | None = None
    """What the answer says."""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """This body instead of an answer."""
    events: tuple[bytes, ...] | None = None
    """These pieces instead of an answer, byte for byte."""
    content_type: str | None = None
    framing: Framing | None = None
    """How the body's end is shown; streams are chunked and other bodies have a length unless told otherwise."""
    gzip: bool = False
    raw: bytes | None = None
    """These bytes instead of an HTTP answer; then the connection is closed. b"" only closes it."""
    delay_s: float = 0.0
    """Wait before the head."""
    event_delay_s: float = 0.0
    """Wait before each piece."""
    stall_before_head: bool = False
    stall_after_events: int | None = None
    stall_at_end: bool = False
    """Everything comes but the end of the body."""
    cut_after_events: int | None = None
    cut_after_bytes: int | None = None
    reset: bool = False
    """A cut is a TCP reset instead of an orderly close."""
    drip: bool = False
    """Every byte is a write of its own."""


def error(status: int, message: str = "upstream says no", *, retry_after: str | None = None) -> Behaviour:
    """An error answer in OpenAI's shape."""
    headers = (("retry-after", retry_after),) if retry_after is not None else ()
    return Behaviour(status=status, headers=headers, body=error_body(message, type="server_error"))


def html_error(status: int = 502) -> Behaviour:
    """The error page of a proxy in between."""
    page = b"<html><head><title>Bad Gateway</title></head><body>nginx</body></html>"
    return Behaviour(status=status, body=page, content_type="text/html")


def redirect(location: str) -> Behaviour:
    """A redirect, which a gateway must not follow with its key."""
    return Behaviour(status=307, headers=(("location", location),), body=b"")


@dataclass(slots=True)
class Received:
    """One request as it arrived; `headers` have lower-case names, order kept. Times are of the loop's clock."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    at: float
    disconnected: asyncio.Future[float] = field(repr=False)
    """When the client left before its answer was whole."""
    is_answered: bool = False

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first field of that (lower-case) name, or None."""
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)


class OpenAIServer:
    """Listens on a free port of the loopback interface while entered."""

    def __init__(self, default: Behaviour | None = None) -> None:
        self.default = default or Behaviour()
        """For requests that `next` says nothing about."""
        self.requests: list[Received] = []
        self.port = 0
        self.connections_opened = 0
        self.connections: set[_Connection] = set()
        self._planned: deque[Behaviour] = deque()
        self._arrived = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """Where the API begins."""
        return f"http://127.0.0.1:{self.port}/v1"

    def next(self, *behaviours: Behaviour) -> None:
        """Answer the next requests like this, one each, in the order of their arrival."""
        self._planned.extend(behaviours)

    async def wait_request(self, index: int = 0, timeout_s: float = 1.0) -> Received:
        """The request of that index, once it is here. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self.requests) <= index:
                self._arrived.clear()
                await self._arrived.wait()
        return self.requests[index]

    async def wait_disconnected(self, index: int = 0, timeout_s: float = 1.0) -> float:
        """When (loop time) that request's client left before its answer was whole. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(self.requests[index].disconnected)

    async def refuse(self) -> None:
        """Stop listening and drop every connection: who connects now is refused."""
        if self._server is not None:
            self._server.close()
            await self._drop_connections()
            await self._server.wait_closed()
            self._server = None

    async def accept(self) -> None:
        """Listen (again), on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.refuse()
        await self._drop_connections()

    def plan(self, received: Received) -> Behaviour:
        """Record a request; how to answer it."""
        self.requests.append(received)
        self._arrived.set()
        return self._planned.popleft() if self._planned else self.default

    async def _drop_connections(self) -> None:
        tasks = [connection.drop() for connection in self.connections]
        # A bug of this server shows in the test that met it.
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


class _Connection(asyncio.Protocol):
    """One client: reads a request, answers it, and so on. Losing the client ends the answer."""

    def __init__(self, server: OpenAIServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._news = asyncio.Event()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._current: Received | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections_opened += 1
        self._server.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        current = self._current
        if current is not None and not current.is_answered and not current.disconnected.done():
            current.disconnected.set_result(asyncio.get_running_loop().time())
        # One that failed by a bug stays, for `_drop_connections` to tell.
        if not self._task.done() or self._task.cancelled() or self._task.exception() is None:
            self._server.connections.discard(self)
        self._task.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def drop(self) -> asyncio.Task[None]:
        """Close at once; the task that ends with it."""
        if self._current is not None:
            self._current.is_answered = True
        self._transport.abort()
        self._task.cancel()
        return self._task

    async def _serve(self) -> None:
        try:
            while True:
                received = await self._receive()
                self._current = received
                if not await self._answer(received, self._server.plan(received)):
                    break
        finally:
            self._transport.close()

    async def _receive(self) -> Received:
        head = (await self._take_until(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        method, target, _ = first.split(" ", 2)
        headers = []
        for line in lines:
            name, _, value = line.partition(":")
            headers.append((name.lower(), value.strip()))
        fields = dict(headers)
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self._take_until(b"\r\n"), 16):
                body += (await self._take(size + 2))[:-2]
            await self._take_until(b"\r\n")
        else:
            body = await self._take(int(fields.get("content-length", 0)))
        loop = asyncio.get_running_loop()
        return Received(method, target, headers, body, loop.time(), loop.create_future())

    async def _take_until(self, mark: bytes) -> bytes:
        while (at := self._buffer.find(mark)) < 0:
            await self._more()
        return await self._take(at + len(mark))

    async def _take(self, num_bytes: int) -> bytes:
        while len(self._buffer) < num_bytes:
            await self._more()
        taken = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return taken

    async def _more(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _answer(self, received: Received, behaviour: Behaviour) -> bool:
        """Send the answer; whether the connection can be used again."""
        await asyncio.sleep(behaviour.delay_s)
        if behaviour.stall_before_head:
            await _for_ever()
        if behaviour.raw is not None:
            received.is_answered = True
            await self._write(behaviour.raw, drip=behaviour.drip)
            return False
        status, content_type, pieces, is_stream = _content(received, behaviour)
        framing: Framing = behaviour.framing or ("chunked" if is_stream else "length")
        if behaviour.gzip:
            pieces = list(_gzip(pieces))
        head = _head(status, content_type, behaviour, framing, sum(map(len, pieces)))
        await self._write(head, drip=behaviour.drip)
        num_sent = 0
        for index, piece in enumerate(pieces):
            if index == behaviour.stall_after_events:
                await _for_ever()
            is_cut = index == behaviour.cut_after_events
            if behaviour.cut_after_bytes is not None and num_sent + len(piece) > behaviour.cut_after_bytes:
                await self._write(_frame(piece[: behaviour.cut_after_bytes - num_sent], framing), drip=behaviour.drip)
                is_cut = True
            if is_cut:
                received.is_answered = True
                if behaviour.reset:
                    self._reset()
                return False
            await asyncio.sleep(behaviour.event_delay_s)
            if index == len(pieces) - 1 and framing != "chunked":
                received.is_answered = True
            await self._write(_frame(piece, framing), drip=behaviour.drip)
            num_sent += len(piece)
        if behaviour.stall_at_end:
            await _for_ever()
        received.is_answered = True
        if framing == "chunked":
            await self._write(b"0\r\n\r\n", drip=behaviour.drip)
        return framing != "eof"

    async def _write(self, data: bytes, *, drip: bool) -> None:
        for piece in (data[at : at + 1] for at in range(len(data))) if drip else (data,):
            self._transport.write(piece)
            # Also lets a lost client be noticed between two writes.
            await asyncio.sleep(0)
            await self._can_write.wait()

    def _reset(self) -> None:
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def _frame(piece: bytes, framing: Framing) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" and piece else piece


def _head(status: int, content_type: str, behaviour: Behaviour, framing: Framing, num_bytes: int) -> bytes:
    fields = [("content-type", content_type), *behaviour.headers]
    if behaviour.gzip:
        fields.append(("content-encoding", "gzip"))
    ends = {"chunked": ("transfer-encoding", "chunked"), "length": ("content-length", str(num_bytes))}
    fields.append(ends.get(framing, ("connection", "close")))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode("latin-1")


def _gzip(pieces: list[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(wbits=31)
    for index, piece in enumerate(pieces):
        is_last = index == len(pieces) - 1
        yield compressor.compress(piece) + compressor.flush(zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH)


def _content(received: Received, behaviour: Behaviour) -> tuple[int, str, list[bytes], bool]:
    """Status, content type and pieces of an answer, and whether it is a stream."""
    if behaviour.events is not None:
        return behaviour.status, behaviour.content_type or _SSE, list(behaviour.events), True
    if behaviour.body is not None:
        return behaviour.status, behaviour.content_type or _JSON, [behaviour.body], False
    path = received.path.removeprefix("/v1")
    operation = _OPERATIONS.get(path)
    if operation is not None:
        try:
            pieces, is_stream = _openai(received, operation, behaviour.text)
        except InvalidRequest as invalid:
            return 400, _JSON, [invalid.body()], False
        return behaviour.status, behaviour.content_type or (_SSE if is_stream else _JSON), pieces, is_stream
    if path == "/models":
        model = {"id": "test-model", "object": "model", "created": 1_700_000_000, "owned_by": "tests"}
        listing = msgspec.json.encode({"object": "list", "data": [model]})
        return behaviour.status, behaviour.content_type or _JSON, [listing], False
    echoed_type = behaviour.content_type or received.header("content-type") or "application/octet-stream"
    return behaviour.status, echoed_type, [received.body], False


def _openai(received: Received, operation: Operation, text: str | None) -> tuple[list[bytes], bool]:
    body = received.json()
    is_stream = bool(body.get("stream"))
    said = body["messages"][-1]["content"] if "messages" in body else body.get("prompt", body.get("input"))
    call = Call(
        operation=operation,
        path=received.path,
        raw=received.body,
        body=body,
        model=body.get("model", ""),
        deadline=0.0,
        facts=Facts(),
        stream=is_stream,
    )
    made = answer(call, text if text is not None else str(said), number=1, created=1_700_000_000)
    pieces = list(made.pieces)
    if operation in (Operation.CHAT, Operation.COMPLETION) and not (body.get("stream_options") or {}).get(
        "include_usage"
    ):
        pieces = [piece for piece in pieces if b'"choices":[],' not in piece]
    return pieces, is_stream
