"""Below /slipstream: guesses of how answers go on, from who has asked for these answers; pushed, or by rounds."""

from __future__ import annotations

from typing import TypeGuard

import msgspec
from starlette.types import Receive, Scope, Send

from backends.drafts.push import DRAFT_PATH, Drafts, Pushable
from backends.drafts.rounds import VERIFY_PATH
from backends.errors import Forbidden, InvalidRequest, MethodNotAllowed, UnknownObject, UnknownPath
from backends.operations import Operation
from backends.protocol import Backend
from gateway.api.verify import VerifyApi
from gateway.core import Core
from gateway.door import own_headers, serve
from gateway.http.connection import connection_of
from gateway.http.incoming import Incoming, read_body
from gateway.record.exchange import Exchange
from gateway.runtime import Runtime

_MAX_BYTES = 1024**2
_read_drafts = msgspec.json.Decoder(Drafts).decode


class DraftsApi:
    """All paths below /slipstream, of which there are two. Bare ASGI."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._verify = VerifyApi(core)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def answer(incoming: Incoming, exchange: Exchange, runtime: Runtime) -> None:
            principal = exchange.principal
            path = scope["path"].removeprefix("/v1").rstrip("/")
            if path not in (DRAFT_PATH, VERIFY_PATH):
                raise UnknownPath(f"there is no {scope['path']}")
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['path']} does not take {scope['method']}")
            if path == VERIFY_PATH:
                await self._verify.answer(scope, receive, send, incoming, exchange)
                return
            if not principal.drafts:
                raise Forbidden("this key may not push drafts; one of the policy file with `drafts: true` may")
            raw = await read_body(receive, incoming, _MAX_BYTES, self._core.pace())
            try:
                drafts = _read_drafts(raw)
            except msgspec.DecodeError as error:
                raise InvalidRequest(f"the body is no list of drafts: {error}") from None
            for draft in drafts:
                target = _writer_of(draft.id, runtime)
                await target.push(draft, tenant=principal.tenant, key_id=principal.key)
            exchange.status = 204
            await connection_of(scope).answer(204, own_headers(self._core, exchange, incoming), b"")

        await serve(self._core, Operation.PASSTHROUGH, scope, answer)


def _writer_of(answer_id: str, runtime: Runtime) -> Pushable:
    """Who writes the answer here. Raises: UnknownObject, as for an answer of somebody else."""
    for leaf in runtime.leaves.values():
        if _is_writer(leaf, answer_id):
            return leaf
    raise UnknownObject(f'there is no answer "{answer_id}" that takes drafts, or not any more')


def _is_writer(leaf: Backend, answer_id: str) -> TypeGuard[Pushable]:
    return isinstance(leaf, Pushable) and leaf.is_writing(answer_id)
