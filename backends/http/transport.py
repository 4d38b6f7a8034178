"""Our HTTP/1.1 transport: wires over connections of our own.

No HTTP/2, no proxies, no cookies, no redirects, no decompression; `foreign.py` adapts transports that have those.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import cache

from backends.clock import Clock
from backends.errors import InvalidRequest, UpstreamError
from backends.http.http1_exchange import WRITE_SLICE_BYTES, HttpExchange, NeverRead
from backends.http.origin import parse_origin
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
        is_head = method == "HEAD"
        pool = self._pool
        connection = pool.acquire_nowait(pool.check_time(limits))
        if connection is None:
            connection = await pool.acquire(limits)
        while True:
            may_be_stale = connection.is_used
            exchange = pool.begin(connection, limits, is_head=is_head)
            try:
                if len(body) <= WRITE_SLICE_BYTES:
                    exchange.write(head, body)
                else:
                    await exchange.write_slices(head, body)
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
            connection = await pool.acquire(limits, must_be_new=True)

    async def aclose(self) -> None:
        """Close every connection; exchanges in flight end as cut. Safe to call twice."""
        await self._pool.aclose()

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
        return self._pool.statistics()


class Transport:
    """Connections for any number of origins; one instance belongs to one event loop.

    Every wire has connections of its own, so one backend cannot starve another. `idle_expiry_s` None means what suits
    the scheme, `ssl_context` None the system's certificate authorities, loaded once when first needed.
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

    def wire(self, base_url: str, name: str = "") -> HttpWire:
        """A wire to the origin of `base_url`; what follows the origin is ignored. The caller closes it, or this does.

        Errors say `name` and never the address. Raises: ConfigurationError.
        """
        origin = parse_origin(base_url)
        limits = PoolLimits(
            max_connections=self._max_connections,
            max_idle=self._max_idle,
            idle_expiry_s=_IDLE_EXPIRY_S[origin.scheme] if self._idle_expiry_s is None else self._idle_expiry_s,
        )
        return HttpWire(OriginPool(origin, limits, self._clock, self._sweeper, self._tls, name=name))

    async def aclose(self) -> None:
        """Close every connection of every wire; exchanges in flight end as cut. Safe to call twice."""
        for pool in list(self._sweeper.pools):
            await pool.aclose()

    def _tls(self) -> ssl.SSLContext:
        return _system_authorities() if self._ssl_context is None else self._ssl_context


@cache
def _system_authorities() -> ssl.SSLContext:
    """The system's certificate authorities, which all transports share: each loading takes 25 ms and 0.8 MiB."""
    return ssl.create_default_context()


def _check_head(head: bytes, num_lines: int, target: bytes) -> None:
    """Refuse whatever would add a line to the head: it may hold the two characters of every line end, and no more.

    Raises: InvalidRequest.
    """
    if len(head) - len(head.translate(None, b"\r\n\0")) != 2 * num_lines or b" " in target:
        raise InvalidRequest("the path or a header has a line break, a null byte or (the path) a space in it")
