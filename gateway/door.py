"""The door that every call comes in by: requests of clients, whatever they ask for, and lines of batches.

In this order: the policy in force is held, the call counted and traced, its caller authenticated, the call answered;
then what has failed becomes an error of ours, everything is let go, and the observer is told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.types import Scope

from backends.errors import InternalError, SlipstreamError, WebSocketRefused
from backends.operations import Operation
from backends.protocol import Headers
from gateway.core import Core
from gateway.http.connection import connection_of
from gateway.http.cors import cors_headers
from gateway.http.incoming import Incoming
from gateway.http.relay import send_error
from gateway.record.exchange import Exchange
from gateway.runtime import Runtime

_logger = logging.getLogger(__name__)

Answer = Callable[[Incoming, Exchange, Runtime], Awaitable[None]]
"""Sends the answer to a request of a known caller, or raises."""


class Visit:
    """One call from when it comes until it is `over`. `headers` are those that it came with, or the trace's own."""

    __slots__ = ("_core", "_exchange", "_span", "headers", "runtime")

    def __init__(self, core: Core, exchange: Exchange, headers: Headers) -> None:
        self._core = core
        self._exchange = exchange
        self.headers = headers
        self.runtime = core.acquire()
        core.in_flight += 1
        self._span = None
        if core.tracer is not None:
            self._span, self.headers = core.tracer.begin(exchange, headers)

    def failed(self, error: Exception) -> SlipstreamError:
        """What the caller is told: an error of ours as it is; of one that nobody has foreseen the log tells."""
        exchange = self._exchange
        if not isinstance(error, SlipstreamError):
            _logger.error("request %s failed inside the gateway", exchange.request_id, exc_info=error)
            error = InternalError("the gateway failed on this request; its log says why")
        exchange.error_code, exchange.fault = error.reason, error.fault
        return error

    def over(self, then: Callable[[], None] | None = None) -> None:
        """Let go of everything, and tell the observer. `then` is called once a ledger has noted the call."""
        core, exchange = self._core, self._exchange
        self.runtime.release()
        core.in_flight -= 1
        if exchange.held_body is not None:
            exchange.held_body.release()
        if exchange.grant is not None:
            core.reserving.settle(exchange)
        core.observer.finished(exchange)
        if core.booking is not None:
            core.booking.ends(exchange, then)
        if core.tracer is not None and self._span is not None:
            core.tracer.end(self._span, exchange)


async def serve(core: Core, operation: Operation, scope: Scope, answer: Answer) -> None:
    """Answer one request; never raises but for cancellation from outside."""
    exchange, incoming = _arrived(core, operation, scope)
    visit = Visit(core, exchange, incoming.forwarded)
    incoming.forwarded = visit.headers
    connection = connection_of(scope)
    if core.booking is not None:
        connection.holds_ends = True
    try:
        keyring = visit.runtime.keyring
        principal = keyring.recognise(incoming.credentials, connection.shown_key)
        exchange.principal = principal or await keyring.authenticate(incoming.credentials)
        await answer(incoming, exchange, visit.runtime)
    except Exception as error:  # a named border: one call's failure is nobody else's
        await _tell(visit.failed(error), core, scope, exchange, incoming)
    finally:
        visit.over(connection.release if core.booking is not None else None)


async def _tell(refusal: SlipstreamError, core: Core, scope: Scope, exchange: Exchange, incoming: Incoming) -> None:
    """Answer with the error, unless an answer has begun: that stays without its end.

    The error has come through the frame of `serve`. If a name there had it still, both would keep each other, and the
    request's body, until the next full garbage collection, which may be a thousand bodies later.
    """
    connection = connection_of(scope)
    if not connection.has_begun:
        exchange.status = refusal.status
        await send_error(connection, refusal, own_headers(core, exchange, incoming))


async def refuse(core: Core, scope: Scope, error: Exception) -> None:
    """Answer with an error what has failed, or is refused, where nobody looks who asks."""
    exchange, incoming = _arrived(core, Operation.PASSTHROUGH, scope)
    visit = Visit(core, exchange, incoming.forwarded)
    try:
        refusal = visit.failed(error)
        exchange.status = refusal.status
        headers = [(b"x-request-id", exchange.request_id.encode("ascii"))]
        if isinstance(error, WebSocketRefused):
            # RFC 9110, section 15.5.22: a 426 names what is spoken instead.
            headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]
        await send_error(connection_of(scope), refusal, headers)
    finally:
        visit.over()


def own_headers(core: Core, exchange: Exchange, incoming: Incoming) -> Headers:
    """What the gateway itself says in the head of an answer."""
    headers: Headers = [(b"x-request-id", exchange.request_id.encode("ascii"))]
    facts = exchange.facts
    if facts.sent_at is not None and facts.stopwatch is None:
        now = core.clock.now()
        upstream_s = (facts.first_token_at or now) - facts.sent_at
        own_s = now - exchange.started_at - upstream_s
        headers.append((b"server-timing", b"gw;dur=%.2f, upstream;dur=%.2f" % (own_s * 1e3, upstream_s * 1e3)))
    headers += exchange.rate_headers
    origins = core.settings.cors_origins
    if origins and incoming.origin:
        headers += cors_headers(incoming.origin, origins)
    return headers


def _arrived(core: Core, operation: Operation, scope: Scope) -> tuple[Exchange, Incoming]:
    exchange = Exchange(operation, core.clock.now())
    incoming = Incoming(scope["headers"])
    exchange.request_id = core.request_id(incoming)
    return exchange, incoming
