"""One answer of the gateway's own, as JSON: what is asked of no backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from starlette.types import Scope

from backends.operations import Operation
from backends.protocol import Headers
from gateway.core import Core
from gateway.door import own_headers, serve
from gateway.http.auth import Principal
from gateway.http.connection import connection_of
from gateway.http.incoming import Incoming
from gateway.http.relay import JSON_HEADER
from gateway.record.exchange import Exchange
from gateway.runtime import Runtime


class Streamed(NamedTuple):
    """An answer that sends itself, with these headers besides its own."""

    send: Callable[[Headers], Awaitable[None]]


async def respond(core: Core, scope: Scope, make: Callable[[Runtime, Principal, Incoming], Awaitable[object]]) -> None:
    """Answer a request of a known caller with what `make` says, or with the error that it raises."""

    async def answer(incoming: Incoming, exchange: Exchange, runtime: Runtime) -> None:
        said = await make(runtime, exchange.principal, incoming)
        headers = own_headers(core, exchange, incoming)
        exchange.status = 200
        if isinstance(said, Streamed):
            await said.send(headers)
        else:
            await connection_of(scope).answer(200, [*headers, JSON_HEADER], msgspec.json.encode(said))

    await serve(core, Operation.PASSTHROUGH, scope, answer)
