"""Any httpx transport as a wire: same contract, httpx's errors translated at the border."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from backends.clock import SystemClock
from backends.errors import (
    ConnectFailed,
    ConnectTimeout,
    FirstTokenTimeout,
    InvalidRequest,
    PoolTimeout,
    SlipstreamError,
    StreamStalled,
    TotalTimeout,
    UpstreamCut,
    UpstreamGarbage,
)
from backends.http.foreign import HttpxWire
from backends.http.wire import TimeLimits
from tests.support.servers.raw_server import Peer, RawServer, generous


def mocked(handler: object) -> HttpxWire:
    """A wire whose answers come from a function."""
    return HttpxWire(httpx.MockTransport(handler), "http://upstream.test:8000/v1", SystemClock())  # type: ignore[arg-type]


async def fetch(wire: HttpxWire, limits: TimeLimits | None = None) -> bytes:
    """One whole exchange."""
    exchange = await wire.send("POST", b"/v1/x?y=%20z", [(b"x-a", b"1")], b"question", limits or generous())
    try:
        return await exchange.body(1000)
    finally:
        await exchange.aclose()


async def test_send_passes_everything_on_and_reads_the_answer() -> None:
    """Method, target, headers and body arrive; status, headers and raw bytes come back."""
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, headers=[("X-One", "1"), ("X-One", "2")], content=gzip.compress(b"hi"))

    wire = mocked(handler)
    exchange = await wire.send("POST", b"/v1/x?y=%20z", [(b"x-a", b"1")], b"question", generous())
    pieces = [await exchange.read(), await exchange.read()]
    await exchange.aclose()
    await exchange.aclose()

    assert (exchange.status, [value for name, value in exchange.headers if name == b"x-one"]) == (201, [b"1", b"2"])
    assert pieces == [gzip.compress(b"hi"), b""]
    assert (seen[0].method, seen[0].url.raw_path, seen[0].content) == ("POST", b"/v1/x?y=%20z", b"question")
    assert (seen[0].headers["host"], seen[0].headers["x-a"]) == ("upstream.test:8000", "1")
    assert wire.statistics().sent == 1
    assert (wire.statistics().in_flight, wire.statistics().failed) == (0, 0)


async def test_in_process_application_answers() -> None:
    """An ASGI application can be a backend."""

    async def application(scope: dict[str, object], receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"from inside"})  # type: ignore[operator]

    wire = HttpxWire(httpx.ASGITransport(application), "http://inside", SystemClock())  # type: ignore[arg-type]

    assert await fetch(wire) == b"from inside"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (httpx.ConnectTimeout, ConnectTimeout),
        (httpx.PoolTimeout, PoolTimeout),
        (httpx.ReadTimeout, FirstTokenTimeout),
        (httpx.WriteTimeout, FirstTokenTimeout),
        (httpx.ConnectError, ConnectFailed),
        (httpx.ProxyError, ConnectFailed),
        (httpx.UnsupportedProtocol, ConnectFailed),
        (httpx.LocalProtocolError, InvalidRequest),
        (httpx.RemoteProtocolError, UpstreamCut),
        (httpx.ReadError, UpstreamCut),
        (httpx.WriteError, UpstreamCut),
        (httpx.CloseError, UpstreamCut),
        (TimeoutError, FirstTokenTimeout),
    ],
)
async def test_error_before_the_head_is_translated(raised: type[Exception], expected: type[SlipstreamError]) -> None:
    """Every error of httpx becomes the one of ours that says the same, with the cause kept."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise raised("reason")

    wire = mocked(handler)
    with pytest.raises(expected) as caught:
        await fetch(wire)

    assert type(caught.value) is expected
    assert isinstance(caught.value.__cause__, raised)
    assert (wire.statistics().in_flight, wire.statistics().failed) == (0, 1)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (httpx.ReadTimeout, StreamStalled),
        (httpx.ReadError, UpstreamCut),
        (httpx.RemoteProtocolError, UpstreamCut),
        (httpx.DecodingError, UpstreamGarbage),
        (httpx.StreamClosed, UpstreamCut),
    ],
)
async def test_error_in_the_body_is_translated_and_stays(
    raised: type[Exception], expected: type[SlipstreamError]
) -> None:
    """After an error the stream never looks like a clean end."""

    async def body() -> AsyncIterator[bytes]:
        yield b""
        yield b"some"
        raise raised() if raised is httpx.StreamClosed else raised("reason")

    wire = mocked(lambda request: httpx.Response(200, content=body()))
    exchange = await wire.send("GET", b"/", [], b"", generous())
    assert await exchange.read() == b"some"
    for _ in range(2):
        with pytest.raises(expected):
            await exchange.read()
    await exchange.aclose()

    assert (wire.statistics().in_flight, wire.statistics().failed) == (0, 1)


@pytest.mark.parametrize(
    ("limit", "in_body", "expected"),
    [
        ("first_byte_s", False, FirstTokenTimeout),
        ("deadline", False, TotalTimeout),
        ("idle_s", True, StreamStalled),
        ("deadline", True, TotalTimeout),
    ],
)
async def test_limits_hold_for_a_transport_without_any(
    limit: str, in_body: bool, expected: type[SlipstreamError]
) -> None:
    """Silence is bounded whatever the transport does about it."""

    async def body() -> AsyncIterator[bytes]:
        yield b"some"
        await asyncio.get_running_loop().create_future()

    async def handler(request: httpx.Request) -> httpx.Response:
        if not in_body:
            await asyncio.get_running_loop().create_future()
        return httpx.Response(200, content=body())

    limits = generous(**{"connect_s": 0.0, limit: time.monotonic() + 0.02 if limit == "deadline" else 0.02})
    with pytest.raises(expected) as caught:
        await fetch(mocked(handler), limits)

    assert type(caught.value) is expected


async def test_cancelled_read_never_looks_like_a_clean_end() -> None:
    """A read that was broken off ends the exchange."""

    async def body() -> AsyncIterator[bytes]:
        await asyncio.get_running_loop().create_future()
        yield b""

    wire = mocked(lambda request: httpx.Response(200, content=body()))
    exchange = await wire.send("GET", b"/", [], b"", generous())
    reading = asyncio.ensure_future(exchange.read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    with pytest.raises(UpstreamCut):
        await exchange.read()
    await exchange.aclose()


async def test_early_close_never_looks_like_a_clean_end() -> None:
    """What was not read is not there."""
    wire = mocked(lambda request: httpx.Response(200, content=b"unread"))
    exchange = await wire.send("GET", b"/", [], b"", generous())
    await exchange.aclose()
    with pytest.raises(UpstreamCut):
        await exchange.read()

    assert wire.statistics().in_flight == 0


async def test_body_longer_than_allowed_raises_garbage() -> None:
    """The bound is the caller's."""
    wire = mocked(lambda request: httpx.Response(200, content=b"x" * 1001))
    with pytest.raises(UpstreamGarbage, match="1000"):
        await fetch(wire)


async def test_path_that_cannot_be_sent_is_refused() -> None:
    """What httpx finds unsendable is an invalid request."""
    wire = mocked(lambda request: httpx.Response(200))
    with pytest.raises(InvalidRequest):
        await wire.send("GET", b"/a\nb", [], b"", generous())


async def test_answer_that_only_reads_synchronously_is_garbage() -> None:
    """Such a transport cannot serve an event loop."""

    def body() -> Iterator[bytes]:
        yield b"x"

    wire = mocked(lambda request: httpx.Response(200, content=body()))
    with pytest.raises(UpstreamGarbage):
        await fetch(wire)


async def test_closed_wire_refuses() -> None:
    """After `aclose`, which may be called twice, nothing is sent."""
    wire = mocked(lambda request: httpx.Response(200))
    await wire.open()
    await wire.aclose()
    await wire.aclose()
    with pytest.raises(ConnectFailed):
        await fetch(wire)


async def test_httpx_own_transport_is_closed_at_once_on_an_early_close() -> None:
    """Over real sockets, an answer nobody wants any more ends its connection."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nab")
        await peer.wait_gone()
        gone.set_result(None)

    async with RawServer(serve) as server:
        wire = HttpxWire(httpx.AsyncHTTPTransport(), server.base_url, SystemClock())
        exchange = await wire.send("GET", b"/", [], b"", generous())
        assert await exchange.read() == b"ab"
        await exchange.aclose()
        async with asyncio.timeout(10):
            await gone
        await wire.aclose()
