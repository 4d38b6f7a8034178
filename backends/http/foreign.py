"""Any httpx transport as a `Wire`: for HTTP/2, proxies, in-process ASGI applications, and mocks in tests.

Slower than our own transport, which is why it is not the default. httpx's errors become ours here and nowhere else.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from backends.answer_budget import HeldAnswer
from backends.clock import Clock
from backends.errors import (
    ConfigurationError,
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
from backends.http.origin import parse_origin
from backends.http.wire import TimeLimits
from backends.protocol import Headers, Statistics
from backends.stream import Receive

_logger = logging.getLogger(__name__)


class HttpxWire:
    """A `Wire` over `transport`, which it owns: closing the wire closes it.

    Errors that are not httpx's, such as those an in-process application raises, pass through as they are.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, base_url: str, clock: Clock) -> None:
        origin = parse_origin(base_url)
        self._url = httpx.URL(scheme=origin.scheme, host=origin.host, port=origin.port)
        self._transport = transport
        self._clock = clock
        self._is_closed = False
        self._num_sent = 0
        self._num_failed = 0
        self._num_in_flight = 0

    async def open(self) -> None:
        """Nothing to acquire: a transport connects when it is first used."""

    async def send(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes, limits: TimeLimits
    ) -> HttpxExchange:
        """See `Wire.send`.

        `connect_s` and `first_byte_s` are enforced as their sum, and each by itself where the transport honours
        httpx's timeouts. Raises: also InvalidRequest where the transport finds the request unsendable.
        """
        if self._is_closed:
            raise ConnectFailed("the transport to the upstream is closed; nothing was sent")
        request = self._request(method, target, headers, body, limits)
        answer_due_at = self._clock.now() + limits.connect_s + limits.first_byte_s
        self._num_sent += 1
        self._num_in_flight += 1
        try:
            late = FirstTokenTimeout("the upstream did not begin to answer in time")
            with _border(late if answer_due_at < limits.deadline else _time_is_up()):
                async with _until(min(answer_due_at, limits.deadline), self._clock):
                    response = await self._transport.handle_async_request(request)
            if not 200 <= response.status_code <= 599:
                raise UpstreamGarbage(f"the upstream answered with status {response.status_code}, which is none")
            stream = response.stream
            if not isinstance(stream, httpx.AsyncByteStream):
                raise UpstreamGarbage("the transport answered with a stream that cannot be read asynchronously")
            exchange = HttpxExchange(response, stream, limits, self._clock, self._finish)
        except SlipstreamError:
            self._finish(has_failed=True)
            raise
        except BaseException:
            self._finish(has_failed=False)
            raise
        return exchange

    async def aclose(self) -> None:
        """Close the transport. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            await self._transport.aclose()

    def statistics(self) -> Statistics:
        """A snapshot of the counters; connections are the transport's own affair and not counted."""
        return Statistics(in_flight=self._num_in_flight, sent=self._num_sent, failed=self._num_failed)

    def _request(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes, limits: TimeLimits
    ) -> httpx.Request:
        connect_s = None if limits.connect_s == math.inf else limits.connect_s
        try:
            url = self._url.copy_with(raw_path=target)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"the path cannot be sent: {error}") from error
        # Silences are ours to bound: the one that is allowed may change while the answer is read.
        timeout = {"connect": connect_s, "pool": connect_s, "write": None, "read": None}
        return httpx.Request(method, url, headers=list(headers), content=body, extensions={"timeout": timeout})

    def _finish(self, *, has_failed: bool) -> None:
        self._num_in_flight -= 1
        self._num_failed += has_failed


class HttpxExchange:
    """An `Exchange` over an httpx response; bytes as the transport gives them, never decompressed."""

    def __init__(
        self,
        response: httpx.Response,
        stream: httpx.AsyncByteStream,
        limits: TimeLimits,
        clock: Clock,
        on_close: Callable[..., None],
    ) -> None:
        self.status = response.status_code
        self.headers: Headers = [(name.lower(), value) for name, value in response.headers.raw]
        self.idle_s = limits.idle_s
        self._stream = stream
        self._pieces = aiter(stream)
        self._limits = limits
        self._clock = clock
        self._on_close = on_close
        self._is_closed = False
        self._is_complete = False
        self._failure: SlipstreamError | None = None

    async def read(self) -> bytes:
        """See `Exchange.read`. Raises: also UpstreamGarbage."""
        if self._is_complete:
            return b""
        if self._failure is None:
            try:
                return await self._next_piece()
            except SlipstreamError as error:
                self._failure = error
            except BaseException:
                # Generators that were broken off report a clean end from then on.
                self._failure = UpstreamCut("the reading of the answer was broken off")
                raise
        raise self._failure

    async def forward(self, receive: Receive) -> bool:
        """See `Exchange.forward`."""
        while piece := await self.read():
            if not receive(piece):
                return True
        return False

    async def body(self, max_bytes: int, held: HeldAnswer | None = None) -> bytes:
        """See `Exchange.body`."""
        parts: list[bytes] = []
        num_bytes = 0
        while piece := await self.read():
            parts.append(piece)
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                self._failure = UpstreamGarbage(f"the upstream's answer is longer than the allowed {max_bytes} bytes")
                raise self._failure
            if held is not None:
                await held.grow(num_bytes)
        return b"".join(parts)

    async def aclose(self) -> None:
        """Close the response. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_close(has_failed=self._failure is not None)
        if not self._is_complete and self._failure is None:
            self._failure = UpstreamCut("the answer was closed before it was read to its end")
        try:
            if isinstance(self._pieces, AsyncGenerator):
                await self._pieces.aclose()
        finally:
            await self._stream.aclose()

    async def _next_piece(self) -> bytes:
        deadline = self._limits.deadline
        while True:
            silence_ends_at = self._clock.now() + self.idle_s
            late = StreamStalled(f"the upstream was silent for {self.idle_s:g} s in the middle of its answer")
            with _border(late if silence_ends_at < deadline else _time_is_up()):
                async with _until(min(silence_ends_at, deadline), self._clock):
                    piece = await anext(self._pieces, None)
            if piece is None:
                self._is_complete = True
                return b""
            if piece:
                return piece


def made_by(name: str, target: str) -> Any:
    """What `module:factory` makes: the transport of the backend of that name. Raises: ConfigurationError."""
    factory = _factory(name, target)
    try:
        return factory()
    except Exception as error:  # a named border: the code is the operator's
        problem = f'backends.{name}.transport: "{target}" fails: {type(error).__name__}: {error}'
        raise ConfigurationError(problem) from error


def _factory(name: str, target: str) -> Any:
    """What `module:factory` names. Raises: ConfigurationError."""
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # a named border, as above
        raise ConfigurationError(f'backends.{name}.transport: "{target}" cannot be imported: {error}') from error
    return found


def _until(moment: float, clock: Clock) -> asyncio.Timeout:
    return asyncio.timeout(None if moment == math.inf else moment - clock.now())


def _time_is_up() -> TotalTimeout:
    return TotalTimeout("the upstream had not finished its answer when the call's time was up")


@contextmanager
def _border(late: SlipstreamError) -> Iterator[None]:
    """httpx's errors leave it as ours. `late` is what waiting too long means at this point."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise ConnectTimeout("no connection within the time allowed; nothing was sent") from error
    except httpx.PoolTimeout as error:
        raise PoolTimeout("no connection came free in time; nothing was sent") from error
    except (TimeoutError, httpx.TimeoutException) as error:
        raise late from error
    except (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
        # Their words may hold the address, which is none of the client's business.
        _logger.info("cannot connect to an upstream: %s", error)
        raise ConnectFailed("cannot connect to the upstream; nothing was sent") from error
    except httpx.LocalProtocolError as error:
        raise InvalidRequest(f"the request cannot be sent: {error}") from error
    except httpx.DecodingError as error:
        raise UpstreamGarbage("the upstream's answer cannot be decoded") from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise UpstreamCut(f"the upstream broke off ({type(error).__name__})") from error
