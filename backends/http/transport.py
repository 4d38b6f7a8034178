"""Our HTTP/1.1 transport: a `Wire` for the hot path, an `httpx.AsyncBaseTransport` for whoever brings httpx objects.

No HTTP/2, no proxies, no cookies, no redirects, no decompression; `foreign.py` adapts transports that have those.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import httpx

from backends.clock import Clock
from backends.errors import (
    ConnectFailed,
    ConnectTimeout,
    InvalidRequest,
    PoolTimeout,
    SlipstreamError,
    UpstreamCut,
    UpstreamError,
    UpstreamTimeout,
)
from backends.http.http1_exchange import WRITE_SLICE_BYTES, HttpExchange, NeverRead, RequestStalled
from backends.http.origin import Origin, parse_origin
from backends.http.pool import OriginPool, PoolLimits, Sweeper
from backends.http.wire import TimeLimits
from backends.protocol import Statistics

_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})
"""Methods that announce no body by saying nothing of its length (RFC 9110, 8.6)."""

_IDLE_EXPIRY_S = {"http": 4.0, "https": 55.0}
"""Just below what servers keep: uvicorn, under vLLM and most others, closes after 5 s; proxies before providers, which
speak TLS, after 60 s or more, and there a new connection costs several round trips."""


class HttpWire:
    """A `Wire` over our own connections to one origin."""

    def __init__(self, pool: OriginPool) -> None:
        self._pool = pool
        # What follows the target in every head that `send` builds.
        self._protocol_and_host = b" HTTP/1.1\r\nhost: " + pool.origin.host_header + b"\r\n"

    async def open(self) -> None:
        """Load the certificate authorities now, so that the first request does not wait for the disk."""
        self._pool.prepare()

    async def send(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes, limits: TimeLimits
    ) -> HttpExchange:
        """See `Wire.send`. A request is sent again only where a kept connection was closed before it had arrived there.

        Raises: also InvalidRequest where target or headers would break out of their line.
        """
        parts = [method.encode("ascii"), b" ", target, self._protocol_and_host]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        has_length = bool(body) or method not in _BODILESS
        parts.append(b"content-length: %d\r\n\r\n" % len(body) if has_length else b"\r\n")
        head = b"".join(parts)
        _check_head(head, len(headers) + 3 + has_length, target)
        return await self.exchange(head, body, limits, is_head=method == "HEAD")

    async def exchange(
        self, head: bytes, body: bytes, limits: TimeLimits, *, is_head: bool = False, wait_s: float | None = None
    ) -> HttpExchange:
        """Send a head that is complete and checked, with its body, and wait for the head of the answer.

        Raises: as `Wire.send`. `wait_s`: see `OriginPool.acquire`.
        """
        pool = self._pool
        connection = pool.acquire_nowait(pool.check_time(limits))
        if connection is None:
            connection = await pool.acquire(limits, wait_s=wait_s)
        while True:
            may_be_stale = connection.is_used
            exchange = pool.begin(connection, limits, is_head=is_head)
            try:
                if len(body) <= WRITE_SLICE_BYTES:
                    exchange.write(head, body)
                else:
                    await exchange.write_stream(head, _slices(body), limits.first_byte_s)
                await exchange.wait_head()
            except UpstreamError as error:
                exchange.close()
                if not (may_be_stale and isinstance(error, NeverRead)):
                    pool.num_failed += 1
                    raise
            except BaseException:
                exchange.close()
                raise
            else:
                return exchange
            # A new connection, so this is the last attempt.
            connection = await pool.acquire(limits, wait_s=wait_s, must_be_new=True)

    async def exchange_stream(
        self,
        head: bytes,
        pieces: AsyncGenerator[bytes],
        limits: TimeLimits,
        *,
        stall_s: float,
        wait_s: float,
        is_head: bool,
    ) -> HttpExchange:
        """As `exchange`, for a body that comes in (framed) pieces and cannot be sent twice.

        The upstream may stop taking them for `stall_s` seconds.
        Raises: as `exchange`, and what `pieces` raises.
        """
        connection = await self._pool.acquire(limits, wait_s=wait_s, must_be_new=True)
        exchange = self._pool.begin(connection, limits, is_head=is_head)
        try:
            await exchange.write_stream(head, pieces, stall_s)
            await exchange.wait_head()
        except BaseException as error:
            exchange.close()
            self._pool.num_failed += isinstance(error, UpstreamError)
            raise
        return exchange

    async def aclose(self) -> None:
        """Close every connection; exchanges in flight end as cut. Safe to call twice."""
        await self._pool.aclose()

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
        return self._pool.statistics()


class Transport(httpx.AsyncBaseTransport):
    """Connections for any number of origins; one instance belongs to one event loop.

    Every wire has connections of its own, so one backend cannot starve another. `idle_expiry_s` None means what suits
    the scheme, `ssl_context` None the system's certificate authorities, loaded when first needed.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        max_connections: int = 1000,
        max_idle: int = 1000,
        idle_expiry_s: float | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._max_connections = max_connections
        self._max_idle = max_idle
        self._idle_expiry_s = idle_expiry_s
        self._ssl_context = ssl_context
        self._sweeper = Sweeper(clock)
        self._wires: dict[Origin, HttpWire] = {}
        self._is_closed = False

    def wire(self, base_url: str, name: str = "") -> HttpWire:
        """A wire to the origin of `base_url`; what follows the origin is ignored. The caller closes it, or this does.

        Errors say `name` and never the address. Raises: ConfigurationError.
        """
        return self._new_wire(parse_origin(base_url), name)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx; honours `extensions["timeout"]`. Raises: httpx's errors, and what the request's stream raises."""
        origin = _request_origin(request)
        wire = self._wires.get(origin)
        if wire is None:
            if self._is_closed:
                raise httpx.ConnectError("the transport is closed")
            wire = self._wires[origin] = self._new_wire(origin)
        timeout = {
            name: math.inf if value is None else value for name, value in request.extensions.get("timeout", {}).items()
        }
        limits = TimeLimits(
            connect_s=timeout.get("connect", math.inf),
            first_byte_s=timeout.get("read", math.inf),
            idle_s=timeout.get("read", math.inf),
            deadline=math.inf,
        )
        head = _request_head(request, origin)
        is_head = request.method == "HEAD"
        wait_s = timeout.get("pool", math.inf)
        try:
            if isinstance(request.stream, httpx.ByteStream):
                exchange = await wire.exchange(head, await request.aread(), limits, is_head=is_head, wait_s=wait_s)
            else:
                stall_s = timeout.get("write", math.inf)
                exchange = await wire.exchange_stream(
                    head, _request_pieces(request), limits, stall_s=stall_s, wait_s=wait_s, is_head=is_head
                )
        except SlipstreamError as error:
            raise _httpx_error(error) from error
        return httpx.Response(
            exchange.status,
            headers=exchange.headers,
            stream=_ResponseStream(exchange),
            extensions={"http_version": b"HTTP/" + exchange.http_version.encode("ascii")},
        )

    async def aclose(self) -> None:
        """Close every connection of every wire; exchanges in flight end as cut. Safe to call twice."""
        self._is_closed = True
        for pool in list(self._sweeper.pools):
            await pool.aclose()

    def statistics(self) -> Statistics:
        """The sum over all wires that are not closed."""
        snapshots = [pool.statistics() for pool in self._sweeper.pools]
        return Statistics(
            **{name: sum(getattr(snapshot, name) for snapshot in snapshots) for name in Statistics.__struct_fields__}
        )

    def _new_wire(self, origin: Origin, name: str = "") -> HttpWire:
        limits = PoolLimits(
            max_connections=self._max_connections,
            max_idle=self._max_idle,
            idle_expiry_s=_IDLE_EXPIRY_S[origin.scheme] if self._idle_expiry_s is None else self._idle_expiry_s,
        )
        return HttpWire(OriginPool(origin, limits, self._clock, self._sweeper, self._tls, name=name))

    def _tls(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context


class _ResponseStream(httpx.AsyncByteStream):
    """The body of an httpx response; closing it closes the exchange."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._exchange.read():
                yield piece
        except UpstreamError as error:
            raise _httpx_error(error) from error

    async def aclose(self) -> None:
        await self._exchange.aclose()


async def _slices(body: bytes) -> AsyncGenerator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), WRITE_SLICE_BYTES):
        yield view[start : start + WRITE_SLICE_BYTES]


def _check_head(head: bytes, num_lines: int, target: bytes) -> None:
    """Refuse whatever would add a line to the head: it may hold the two characters of every line end, and no more.

    Raises: InvalidRequest.
    """
    if len(head) - len(head.translate(None, b"\r\n\0")) != 2 * num_lines or b" " in target:
        raise InvalidRequest("the path or a header has a line break, a null byte or (the path) a space in it")


def _request_origin(request: httpx.Request) -> Origin:
    url = request.url
    if url.scheme not in ("http", "https"):
        raise httpx.UnsupportedProtocol(f'the URL scheme "{url.scheme}" is not http or https')
    return Origin(url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80))


def _request_head(request: httpx.Request, origin: Origin) -> bytes:
    target = request.url.raw_path
    fields = request.headers.raw
    if "host" not in request.headers:
        fields = [(b"host", origin.host_header), *fields]
    lines = [b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), target)]
    lines += (b"%b: %b\r\n" % field for field in fields)
    head = b"".join((*lines, b"\r\n"))
    try:
        _check_head(head, len(lines) + 1, target)
    except InvalidRequest as error:
        raise httpx.LocalProtocolError(error.message) from error
    return head


async def _request_pieces(request: httpx.Request) -> AsyncGenerator[bytes]:
    """The request's body as it must be framed.

    Raises: httpx.LocalProtocolError where it is not as long as its head announced.
    """
    is_chunked = "chunked" in request.headers.get("transfer-encoding", "")
    missing_bytes = int(request.headers.get("content-length", 0))
    async with aclosing(_stream_of(request)) as pieces:
        async for piece in pieces:
            missing_bytes -= len(piece)
            if not is_chunked:
                yield piece
            elif piece:
                yield b"%x\r\n%b\r\n" % (len(piece), piece)
    if is_chunked:
        yield b"0\r\n\r\n"
    elif missing_bytes:
        raise httpx.LocalProtocolError("the request's body is not as long as its content-length")


async def _stream_of(request: httpx.Request) -> AsyncGenerator[bytes]:
    stream = request.stream
    if isinstance(stream, httpx.AsyncByteStream):
        async for piece in stream:
            yield piece
    else:
        for piece in stream:
            yield piece


def _httpx_error(error: SlipstreamError) -> httpx.TransportError:
    """Ours as httpx's, for callers that know only that."""
    kind: type[httpx.TransportError] = httpx.RemoteProtocolError
    if isinstance(error, PoolTimeout):
        kind = httpx.PoolTimeout
    elif isinstance(error, ConnectTimeout):
        kind = httpx.ConnectTimeout
    elif isinstance(error, ConnectFailed):
        kind = httpx.ConnectError
    elif isinstance(error, RequestStalled):
        kind = httpx.WriteTimeout
    elif isinstance(error, UpstreamTimeout):
        kind = httpx.ReadTimeout
    elif isinstance(error, UpstreamCut) and isinstance(error.__cause__, OSError):
        kind = httpx.ReadError
    return kind(error.message)
