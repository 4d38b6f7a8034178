"""One answer of the gateway's own, as JSON: the bracket around everything that is asked of no backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from starlette.types import Scope

from backends.errors import SlipstreamError, WebSocketRefused
from backends.protocol import Headers, Operation
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.connection import connection_of
from gateway.http.cors import cors_headers
from gateway.http.incoming import Incoming
from gateway.http.relay import JSON_HEADER, send_error
from gateway.record.exchange import Exchange
from gateway.runtime import Runtime


class Streamed(NamedTuple):
    """An answer that sends itself, with these headers besides its own."""

    send: Callable[[Headers], Awaitable[None]]


async def respond(core: Core, scope: Scope, make: Callable[[Runtime, Principal, Incoming], Awaitable[object]]) -> None:
    """Answer a request of a known caller with what `make` says, or with the SlipstreamError that it raises."""
    exchange = Exchange(Operation.PASSTHROUGH, core.clock.now())
    incoming = Incoming(scope["headers"])
    exchange.request_id = core.request_id(incoming)
    headers = [(b"x-request-id", exchange.request_id.encode("ascii"))]
    if incoming.origin and core.settings.cors_origins:
        headers += cors_headers(incoming.origin, core.settings.cors_origins)
    runtime = core.acquire()
    try:
        exchange.principal = runtime.keyring.authenticate(incoming.credentials)
        said = await make(runtime, exchange.principal, incoming)
        exchange.status = 200
        if isinstance(said, Streamed):
            await said.send(headers)
        else:
            await connection_of(scope).answer(200, [*headers, JSON_HEADER], msgspec.json.encode(said))
    except SlipstreamError as error:
        exchange.error_code = error.reason
        exchange.status = error.status
        await send_error(connection_of(scope), error, headers)
    finally:
        runtime.release()
        core.observer.finished(exchange)


async def refuse(core: Core, scope: Scope, error: SlipstreamError) -> None:
    """Answer with an error what is refused before anybody has looked who asks."""
    exchange = Exchange(Operation.PASSTHROUGH, core.clock.now())
    incoming = Incoming(scope["headers"])
    exchange.request_id = core.request_id(incoming)
    exchange.error_code = error.reason
    exchange.status = error.status
    headers = [(b"x-request-id", exchange.request_id.encode("ascii"))]
    if isinstance(error, WebSocketRefused):
        # RFC 9110, section 15.5.22: a 426 names what is spoken instead.
        headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]
    await send_error(connection_of(scope), error, headers)
    core.observer.finished(exchange)
