"""A client's connection: uvicorn's protocol with what ASGI has no cheap way for.

The head of an answer goes out together with the first bytes of its body (one system call and one packet instead of
two), a call learns at once that its client has left, without a task that waits for it, and what a client may send
and how long it may take is bounded. Fields that come after a body (trailers) are dropped, offers of other protocols
(`upgrade.py`) left aside.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from backends.errors import error_body
from backends.protocol import Headers
from gateway.http.auth import ShownKey
from gateway.http.connection_count import ConnectionCount
from gateway.http.corked import CorkedTransport
from gateway.http.unchunked import Unchunked
from gateway.http.upgrade import asks_for_websocket, head_without_upgrade

_STATE_KEY = "slipstream.connection"

_WITHOUT_LENGTH = frozenset({204, 304})
_MAX_HEAD_BYTES = 64 * 1024
_MAX_SENT_AHEAD = 16
"""How many requests may wait for the answers to those before them; further ones are left unread."""
_HELD_BYTES = 16 * 1024
"""Of an answer's end; what comes before them flows as the client takes it."""
_MAX_HEAD_S = 30.0
_MAX_BODY_PAUSE_S = 60.0
_MAX_WRITE_PAUSE_S = 600.0
"""How long a client may leave its answer unread: as long as a whole call may take."""


class ClientConnection(HttpToolsProtocol):
    """One connection. Endpoints find it in their scope with `connection_of`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        crowd: ConnectionCount,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.crowd = crowd
        self._num_ahead = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.answering: set[asyncio.Task[Any]] = set()
        self.is_gone = False
        self.holds_ends = False
        """Whether the last bytes of an answer wait for `release`."""
        self.shown_key = ShownKey()
        self._num_head_bytes = 0
        self._head_seen: object = None
        self._body_seen: bytearray | None = None
        self._num_body_seen = 0
        self._read_limit: asyncio.TimerHandle | None = None
        self._write_limit: asyncio.TimerHandle | None = None
        self._cycle: RequestResponseCycle = None  # type: ignore[assignment]  # until the first request
        self.app_state = {**self.app_state, _STATE_KEY: self}
        self._corked = CorkedTransport(transport, self.loop)
        super().connection_made(self._corked)  # type: ignore[arg-type]  # by its methods
        self.flow = _Flow(self)
        self._idle_since: float | None = self.loop.time()
        self._idle_check = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)
        if not self.crowd.has_room_for(len(self.connections)):
            full = "there are as many connections as may be; try again in a moment"
            self._refuse(b"503 Service Unavailable", full, "too_many_connections", type="server_error")

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: whatever is being answered is cancelled."""
        self.is_gone = True
        self._corked.lose()
        # uvicorn notifies only the request that was read last. With pipelining, earlier ones may still be unanswered.
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        self.pipeline.clear()
        self._count_ahead()
        if self._cycle is not None:
            self._cycle.disconnected = True
            self._cycle.message_event.set()
        super().connection_lost(exc)
        self._idle_check.cancel()
        self._set_read_limit(None)
        self.resume_writing()
        for task in self.answering:
            task.cancel()

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer, content-length added, to the request that is being answered.

        One write: two ASGI messages, with checks of fields that were parsed or made here, cost several times more.
        Raises: ValueError where a field holds a line break.
        """
        if self.flow.write_paused:
            await self.flow.drain()
        cycle = self._cycle
        if cycle.disconnected:
            return
        # A client that sent `expect: 100-continue` and got a final answer may or may not send its body. What comes next
        # could be a body or a request, so the connection cannot be reused.
        keep_alive = cycle.keep_alive and not cycle.waiting_for_100_continue
        # RFC 9110, section 8.6: a 204 has no length, and that of a 304 would be of what the client has.
        length = [b"content-length: %d" % len(body)] if status not in _WITHOUT_LENGTH else []
        fields = [*length, *map(b": ".join, headers)]
        if not keep_alive:
            fields.append(b"connection: close")
        head = b"%b%b\r\n\r\n" % (STATUS_LINE[status], b"\r\n".join(fields))
        if head.count(b"\n") != len(fields) + 2:
            raise ValueError("a field of the answer holds a line break")
        answer = head if cycle.scope["method"] == "HEAD" else head + body
        rest: bytes | memoryview = answer
        if self.holds_ends and len(answer) > _HELD_BYTES:
            self._corked.write_rest(memoryview(answer)[:-_HELD_BYTES])
            rest = memoryview(answer)[-_HELD_BYTES:]
        self.hold_end()
        self._corked.write_rest(rest)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not keep_alive:
            self._corked.close()
        cycle.on_response()

    @property
    def has_begun(self) -> bool:
        """Whether an answer to the request that is being answered is on its way."""
        return self._cycle.response_started

    def take_body(self, max_bytes: int) -> bytes | None:
        """The body of the request that is being answered, if it is here whole and no longer than that.

        Most bodies come with their head; a message, a coroutine and its event would cost more than reading them.
        """
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue or len(cycle.body) > max_bytes:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        return body

    def write_piece(self, piece: bytes) -> None:
        """One piece of a body without a length, whose head and end go through ASGI.

        A message, a coroutine and its bookkeeping for every event would be a third of what an event costs. While
        `flow.write_paused`, the client has not read what it was sent: `flow.drain()` waits for it.
        """
        self._corked.write_rest(b"%x\r\n%b\r\n" % (len(piece), piece) if self._cycle.chunked_encoding else piece)

    def hold_end(self) -> None:
        """What is written next is the answer's end."""
        if self.holds_ends:
            self._corked.hold()

    def release(self) -> None:
        """The end of the answer may go out."""
        self.holds_ends = False
        self._corked.release()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # With pipelining `self.cycle` is the request that was read last; this is the one being answered.
        self._cycle = cycle
        self._idle_since = None
        if cycle.scope["http_version"] < "1.1":
            app = Unchunked(app, cycle)
        super()._start_asgi_task(cycle, app)

    def eof_received(self) -> None:
        """The client has closed its sending half. Where an answer is due, this counts as a disconnect."""
        if self.answering:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, at most 64 KiB (to 128 KiB, as they arrive) of them a head."""
        while len(data) > _MAX_HEAD_BYTES:
            self._receive(data[:_MAX_HEAD_BYTES])
            if self.transport.is_closing():
                return
            data = data[_MAX_HEAD_BYTES:]
        self._receive(data)

    def on_chunk_header(self) -> None:
        """A chunk begins. Fields that come from now on are trailers, which are nobody's: they are not kept."""
        self.headers = []

    def on_message_complete(self) -> None:
        """The request is complete. Reading goes on only to notice when the client disconnects."""
        if self.parser.should_upgrade():
            return
        cycle = self.cycle
        cycle.more_body = False
        cycle.message_event.set()
        if self.flow.read_paused:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The answer is written: the next request that waits is answered, or the connection is idle from now on.

        uvicorn sets a timer for every answer and cancels it at the next request; here one looks now and then.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            self._count_ahead()
            if self._read_limit is not None:
                self._set_read_limit(_MAX_BODY_PAUSE_S)
        else:
            self._idle_since = self.loop.time()
        self.flow.resume_reading()

    def _close_if_idle(self) -> None:
        left_s = float(self.timeout_keep_alive)
        if self._idle_since is not None and self._read_limit is None:
            left_s -= self.loop.time() - self._idle_since
        if left_s > 0:
            self._idle_check = self.loop.call_later(left_s, self._close_if_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(b"400 Bad Request", "this is not a valid HTTP/1.1 request", "invalid_http")

    def pause_writing(self) -> None:
        """The client reads more slowly than its answer comes."""
        super().pause_writing()
        self._write_limit = self.loop.call_later(_MAX_WRITE_PAUSE_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        if self._write_limit is not None:
            self._write_limit.cancel()
            self._write_limit = None

    def _receive(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._leave_upgrades_aside(data, upgrade)
        except httptools.HttpParserError:
            self.send_400_response("")
        if len(self.pipeline) != self._num_ahead:
            self._count_ahead()
        if self.scope is None or "method" not in self.scope:
            is_begun = self._head_seen is not self.scope
            if is_begun:
                # The bytes before this head belonged to another request, and how many they were is not known.
                self._head_seen = self.scope
                self._num_head_bytes = 0
            if (is_begun or self._count_head_bytes(len(data))) and self._read_limit is None:
                self._set_read_limit(_MAX_HEAD_S)
        elif self.cycle is not None and self.cycle.more_body:
            self._watch_body(self.cycle, len(data))
        elif self._read_limit is not None:
            self._num_head_bytes = 0
            self._body_seen = None
            self._set_read_limit(None)

    def _count_ahead(self) -> None:
        self.crowd.num_ahead += len(self.pipeline) - self._num_ahead
        self._num_ahead = len(self.pipeline)

    def _count_head_bytes(self, num_bytes: int) -> bool:
        """Count bytes of the head, trailers included. False where they are over the limit."""
        self._num_head_bytes += num_bytes
        if self._num_head_bytes <= _MAX_HEAD_BYTES:
            return True
        self._refuse(
            b"431 Request Header Fields Too Large",
            f"the request's head, or what stands between the bytes of its body, is over {_MAX_HEAD_BYTES} bytes",
            "headers_too_large",
        )
        return False

    def _watch_body(self, cycle: RequestResponseCycle, num_bytes: int) -> None:
        """Set the time limit for the next bytes of a body, and bound bytes that are no body, such as trailers."""
        if cycle.response_complete:
            # The request was answered before its body ended. The rest is dropped, within one time limit for all of it.
            if self._read_limit is None:
                self._set_read_limit(_MAX_BODY_PAUSE_S)
            return
        if self._body_seen is not cycle.body or self._num_body_seen != len(cycle.body):
            self._body_seen, self._num_body_seen = cycle.body, len(cycle.body)
            self._num_head_bytes = 0
        elif not self._count_head_bytes(num_bytes):
            return
        self._set_read_limit(_MAX_BODY_PAUSE_S)

    def _should_upgrade(self) -> bool:
        # uvicorn calls this only for requests with `upgrade`. With True it does not touch the request.
        return True

    def _leave_upgrades_aside(self, data: bytes, upgrade: httptools.HttpParserUpgrade) -> None:
        """Parse the rest of a request that offers `upgrade` as plain HTTP/1.1.

        llhttp stops at the head of such a request, as if another protocol followed. A new parser gets the same head
        without the offer.
        """
        rest = memoryview(data)
        is_left = False
        while not is_left:
            rest = rest[upgrade.args[0] :]
            try:
                if self._begin_again():
                    self.parser.feed_data(rest)
                is_left = True
            except httptools.HttpParserUpgrade as another:
                upgrade = another
            except httptools.HttpParserError:
                self.send_400_response("")
                is_left = True

    def _begin_again(self) -> bool:
        """Start a new parser with the request's head, without its offer to upgrade. CONNECT is refused: False."""
        method = self.scope["method"]
        if method == "CONNECT":
            self._refuse(b"405 Method Not Allowed", "CONNECT is for proxies", "method_not_allowed")
            return False
        is_websocket = asks_for_websocket(self.headers)
        head = head_without_upgrade(method, self.url, self.scope["http_version"], self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(head)
        if is_websocket:
            self.cycle.scope["type"] = "websocket"  # type: ignore[typeddict-item]  # what it asks for
            self.cycle.keep_alive = False
        return True

    def _set_read_limit(self, seconds: float | None) -> None:
        if self._read_limit is not None:
            self._read_limit.cancel()
        self._read_limit = self.loop.call_later(seconds, self._request_is_late) if seconds is not None else None

    def _request_is_late(self) -> None:
        # The start of a pipelined request waits for the answer to the one before it. Its time limit begins after that.
        self._set_read_limit(_MAX_HEAD_S if self.answering else None)
        if not self.answering:
            self._refuse(b"408 Request Timeout", "the request did not arrive in time", "request_timeout")

    def _refuse(self, status: bytes, message: str, code: str, *, type: str = "invalid_request_error") -> None:
        """Answer what never became a request, and close; nothing is added to an answer that has begun."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if not self.pipeline and (cycle is None or _is_next_to_answer(cycle)):
            body = error_body(message, type=type, code=code)
            fields = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(body)
            self.transport.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, fields, body))
        self.transport.close()


def connection_of(scope: Scope) -> ClientConnection:
    """The connection that a request came on."""
    connection: ClientConnection = scope["state"][_STATE_KEY]
    return connection


def _is_next_to_answer(cycle: RequestResponseCycle) -> bool:
    """Whether what is written now is read as the answer to this request, unfinished, or to one after it."""
    return not cycle.response_started if cycle.more_body else cycle.response_complete


class _Flow(FlowControl):
    """Keeps reading while few pipelined bytes wait, because only a connection that reads notices a disconnect."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection.transport)
        self._connection = connection

    def pause_reading(self) -> None:
        """Called where a request is pipelined or a body is long: stop reading if much is waiting already."""
        num_ahead = len(self._connection.pipeline)
        if num_ahead >= self._connection.crowd.max_kept_ahead:
            raise httptools.HttpParserError("too many requests were sent ahead")
        if num_ahead >= _MAX_SENT_AHEAD or len(self._connection.cycle.body) > HIGH_WATER_LIMIT:
            super().pause_reading()

    def resume_reading(self) -> None:
        """Read on, if there is room."""
        if self.read_paused and len(self._connection.pipeline) < _MAX_SENT_AHEAD:
            super().resume_reading()
