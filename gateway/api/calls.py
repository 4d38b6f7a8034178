"""GET /v1/calls/REQUEST_ID: what became of a call of one's own, and what it cost."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from backends.errors import MethodNotAllowed, UnknownObject, UnknownPath
from gateway.api.respond import respond
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.incoming import Incoming
from gateway.ledger.lookup import newest_call
from gateway.ledger.reader import LedgerReader
from gateway.runtime import Runtime


class CallsApi:
    """All paths below /calls. Bare ASGI."""

    def __init__(self, core: Core, reader: LedgerReader) -> None:
        self._core = core
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def make(runtime: Runtime, principal: Principal, incoming: Incoming) -> object:
            request_id: str = scope["path"].removeprefix("/v1").removeprefix("/calls").strip("/")
            if not request_id:
                raise UnknownPath(f"there is no {scope['path']}; name a call: /v1/calls/REQUEST_ID")
            if scope["method"] not in ("GET", "HEAD"):
                raise MethodNotAllowed(f"{scope['path']} does not take {scope['method']}")
            found = await self._reader.ask(
                lambda transaction: newest_call(transaction, principal.tenant, principal.key, request_id)
            )
            if found is None:
                raise UnknownObject(
                    f'among the newest calls, this key has none with the request id "{request_id[:100]}"; '
                    "a call is there about a second after its end"
                )
            return {"object": "call", **found}

        await respond(self._core, scope, make)
