"""GET /v1/calls/REQUEST_ID: what became of a call of one's own, and what it cost."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from backends.errors import InvalidRequest, MethodNotAllowed, UnknownObject, UnknownPath
from gateway.api.address import path_below, query_of
from gateway.api.respond import respond
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.incoming import Incoming
from gateway.ledger.lookup import newest_call
from gateway.ledger.reader import LedgerReader
from gateway.runtime import Runtime

_MAX_WAIT_S = 10
_LOOK_EVERY_S = 0.2


class CallsApi:
    """All paths below /calls. Bare ASGI."""

    def __init__(self, core: Core, reader: LedgerReader) -> None:
        self._core = core
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def make(runtime: Runtime, principal: Principal, incoming: Incoming) -> object:
            request_id = path_below(scope, "calls")
            if not request_id:
                raise UnknownPath(f"there is no {scope['path']}; name a call: /v1/calls/REQUEST_ID")
            if scope["method"] not in ("GET", "HEAD"):
                raise MethodNotAllowed(f"{scope['path']} does not take {scope['method']}")
            found = await self._find(principal, request_id, _wait_s(scope))
            if found is None:
                raise UnknownObject(
                    f'among the newest calls, this key has none with the request id "{request_id[:100]}"; '
                    "a call is there about a second after its end"
                )
            return {"object": "call", **found}

        await respond(self._core, scope, make)

    async def _find(self, principal: Principal, request_id: str, wait_s: float) -> dict[str, Any] | None:
        until = self._core.clock.now() + wait_s
        while True:
            found = await self._reader.ask(
                lambda transaction: newest_call(transaction, principal.tenant, principal.key, request_id)
            )
            if found is not None or self._core.clock.now() >= until:
                return found
            await asyncio.sleep(_LOOK_EVERY_S)


def _wait_s(scope: Scope) -> float:
    text = query_of(scope).get("wait", "0")
    if not (text.isascii() and text.isdigit() and int(text[:3]) <= _MAX_WAIT_S):
        raise InvalidRequest(f"wait is a number of seconds from 0 to {_MAX_WAIT_S}", param="wait")
    return float(text)
