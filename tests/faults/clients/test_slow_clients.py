"""Clients that take for ever to say something, or to read: every wait for them ends, in time that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.http.connection import ClientConnection
from gateway.http.connection_count import ConnectionCount
from tests.support.http_client import chat_body, request_bytes

_REQUEST = request_bytes("/v1/chat/completions", chat_body())


class _Timer:
    """What `call_later` gives back."""

    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """The part of a loop that a connection uses, with time that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[_Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        self.timers.append(_Timer(self.now + delay, callback))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], object]) -> None:
        callback()

    def create_task(self, coroutine: Any) -> asyncio.Future[None]:
        # The application is asked, and never answers.
        coroutine.close()
        return asyncio.get_running_loop().create_future()

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due is called."""
        self.now += seconds
        for timer in self.timers:
            if timer.at <= self.now and not timer.is_cancelled:
                timer.cancel()
                timer.callback()


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = self.is_aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    """The application, which is never run."""


@pytest.fixture
def loop() -> _Loop:
    """Time."""
    return _Loop()


@pytest.fixture
def transport() -> _Transport:
    """The client's end."""
    return _Transport()


@pytest.fixture
def connection(loop: _Loop, transport: _Transport) -> ClientConnection:
    """A connection that has just been made, to an application that never answers."""
    config = uvicorn.Config(_never, http=ClientConnection, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    config.loaded_app = _never
    made = ClientConnection(config, ServerState(), {}, _loop=loop, crowd=ConnectionCount(10))  # type: ignore[arg-type]  # the part that is used
    made.connection_made(transport)
    return made


async def test_client_that_has_its_answer_is_closed_when_it_stays_idle_and_not_before(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """The time counts from the latest answer, however often the connection was used before."""
    limit_s = connection.timeout_keep_alive
    for _ in range(3):
        loop.advance(limit_s * 0.75)
        connection.data_received(_REQUEST)
        loop.advance(limit_s * 1.5)
        assert not transport.is_closing(), "a request that is being answered is not idle"
        await connection.answer(200, [], b"{}")

    loop.advance(limit_s * 0.9)
    assert not transport.is_closing()
    # A check that was set earlier may come in between and set the next.
    loop.advance(limit_s * 0.2)
    assert transport.is_closing()


async def test_client_that_never_says_anything_is_closed(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """As a kept connection that nobody uses any more."""
    loop.advance(76)

    assert transport.is_closing()
    assert transport.written == b""


async def test_client_that_sends_nothing_but_blank_lines_is_idle(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """HTTP allows them between requests; they ask for nothing, and do not keep a connection open for ever."""
    connection.data_received(_REQUEST)
    await connection.answer(200, [], b"{}")
    for _ in range(20):
        loop.advance(connection.timeout_keep_alive / 5)
        connection.data_received(b"\r\n")

    assert transport.is_closing()


async def test_head_that_begins_when_the_idle_time_ends_is_waited_for(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """A head has its own limit."""
    loop.advance(connection.timeout_keep_alive - 1)
    connection.data_received(_REQUEST[:10])
    loop.advance(20)

    assert not transport.is_closing()


async def test_head_that_comes_byte_by_byte_is_given_up_after_30_seconds(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """Slow-loris: each byte in time, the head never."""
    for byte in _REQUEST[:29]:
        connection.data_received(bytes([byte]))
        loop.advance(1)

        assert not transport.is_closing()
    loop.advance(1)

    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in transport.written
    assert transport.is_closing()


async def test_body_that_stops_is_given_up_after_a_minute(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """A slow upload may take its time, but not stand still."""
    connection.data_received(_REQUEST[:-10])
    for byte in _REQUEST[-10:-2]:
        loop.advance(59)
        connection.data_received(bytes([byte]))
    assert not transport.is_closing()
    loop.advance(60)

    assert transport.is_closing()


async def test_whole_request_may_wait_for_its_answer(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """However it came: limits of the client end with the request."""
    connection.data_received(_REQUEST[:10])
    connection.data_received(_REQUEST[10:-5])
    connection.data_received(_REQUEST[-5:])
    loop.advance(3600)

    assert not transport.is_closing()


async def test_client_that_stops_reading_is_gone_after_ten_minutes(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """And one that reads on in time is not."""
    connection.data_received(_REQUEST)
    connection.pause_writing()
    loop.advance(599)
    connection.resume_writing()
    loop.advance(599)
    connection.pause_writing()
    loop.advance(599)
    assert not transport.is_aborted
    loop.advance(1)

    assert transport.is_aborted


async def test_head_that_stops_behind_a_long_answer_is_late_after_it(
    connection: ClientConnection, loop: _Loop, transport: _Transport
) -> None:
    """Its time passes while the answer is written: it is not forgotten."""
    connection.data_received(_REQUEST)
    answering = asyncio.get_running_loop().create_future()
    connection.answering.add(answering)  # type: ignore[arg-type]  # only counted
    connection.data_received(b"POST /v1/chat/comp")
    loop.advance(100)
    assert not transport.is_closing()
    connection.answering.clear()
    loop.advance(31)

    assert transport.is_closing()


async def test_flood_of_requests_sent_ahead_ends_the_connection(
    connection: ClientConnection, transport: _Transport
) -> None:
    """What comes in one read is bounded like what comes in many."""
    connection.data_received(_REQUEST + b"GET / HTTP/1.1\r\n\r\n" * 10_000)

    assert len(connection.pipeline) <= 256
    assert transport.is_closing()
