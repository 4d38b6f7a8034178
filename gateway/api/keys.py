"""The admin API of keys: making, showing, rotating and revoking those of the key store.

Under /admin/keys, for keys of the policy file with `manages_keys: true`. A key that is made here never has that right.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from backends.errors import Forbidden, InvalidRequest, MethodNotAllowed, UnknownPath
from gateway.api.address import query_of
from gateway.api.budgets import BudgetsApi
from gateway.api.respond import respond
from gateway.batches.file_store import parse_limit
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.decode import decode_json
from gateway.http.incoming import Incoming, read_body
from gateway.keys.stored_key import StoredKey
from gateway.keys.stored_keys import StoredKeys
from gateway.keys.terms import checked_name, checked_terms, key_object, moment_from, overlap_seconds
from gateway.runtime import Runtime

_logger = logging.getLogger(__name__)
_LIMIT = 100
_MAX_LIMIT = 1000
_MAX_BODY_BYTES = 64 * 1024
_OVERLAP = "24h"


class KeysApi:
    """All paths below /admin. Bare ASGI."""

    def __init__(self, core: Core, keys: StoredKeys) -> None:
        self._core = core
        self._keys = keys
        self.budgets = BudgetsApi(core, keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def make(runtime: Runtime, principal: Principal, incoming: Incoming) -> object:
            if not principal.manages_keys:
                raise Forbidden("this key may not manage keys; one of the policy file with `manages_keys: true` may")
            method, (root, _, name) = scope["method"], _below_admin(scope).partition("/")
            if root == "budgets":
                return await self._of_budgets(method, name, scope, receive, (runtime, principal, incoming))
            if root != "keys":
                raise UnknownPath(f"there is no {scope['path']}")
            if method == "GET":
                return await (self._show(name) if name else self.page(query_of(scope)))
            if method != "POST" or (name and not name.endswith(("/rotate", "/revoke"))):
                raise MethodNotAllowed(f"{scope['path']} does not take {method}")
            return await self.change(name, await self._read(receive, incoming), runtime, principal)

        await respond(self._core, scope, make)

    async def _of_budgets(
        self, method: str, name: str, scope: Scope, receive: Receive, asked: tuple[Runtime, Principal, Incoming]
    ) -> object:
        runtime, principal, incoming = asked
        if name not in ("", "raises"):
            raise UnknownPath(f"there is no {scope['path']}")
        if method == "GET":
            query = query_of(scope)
            return await (self.budgets.list_raises(query) if name else self.budgets.list_budgets(query, runtime))
        if method != "POST" or not name:
            raise MethodNotAllowed(f"{scope['path']} does not take {method}")
        return await self.budgets.add_raise(await self._read(receive, incoming), runtime, principal)

    async def _read(self, receive: Receive, incoming: Incoming) -> dict[str, Any]:
        raw = await read_body(receive, incoming, _MAX_BODY_BYTES, self._core.pace())
        body = decode_json(raw) if raw.strip() else {}
        if not isinstance(body, dict):
            raise InvalidRequest("the body is not a JSON object")
        return body

    async def _change(self, name: str, body: dict[str, Any], runtime: Runtime) -> tuple[StoredKey, str, str]:
        """The key, its new secret if it has one, and what has been done."""
        now = self._core.clock.wall()
        if not name:
            values = dict(body)
            created = checked_name(values.pop("name", None), runtime.loaded.policy)
            terms = checked_terms(values, runtime.loaded.policy, now)
            if terms.has_rules and not self._keys.can_count:
                raise InvalidRequest("several workers count the limit and budget of a key only in `stores.redis`")
            return *await self._keys.ask(lambda store: store.create(created, terms)), "created"
        name, _, action = name.rpartition("/")
        if action == "revoke":
            _refuse_others(body, ())
            return await self._keys.ask(lambda store: store.revoke(name)), "", "revoked"
        _refuse_others(body, ("overlap", "expires"))
        overlap_s = overlap_seconds(body.get("overlap", _OVERLAP))
        change = {"expires": moment_from(body["expires"], now)} if body.get("expires") is not None else {}
        return *await self._keys.ask(lambda store: store.rotate(name, overlap_s, change)), "rotated"

    async def change(self, name: str, body: dict[str, Any], runtime: Runtime, principal: Principal) -> dict[str, Any]:
        """Make a key where there is no name, or `NAME/rotate` or `NAME/revoke` it; told with its new secret, if any."""
        key, secret, what = await self._change(name, body, runtime)
        # Calls to this process go by it at once, to others within seconds.
        await self._keys.refresh()
        _logger.info("key %s %s by key %s", key.name, what, principal.key)
        return {**key_object(key, self._core.clock.wall()), **({"key": secret} if secret else {})}

    async def page(self, query: dict[str, str]) -> dict[str, Any]:
        """Keys by their names, so many behind one of them."""
        limit = parse_limit(query.get("limit"), _LIMIT, _MAX_LIMIT)
        after = query.get("after", "")
        found = await self._keys.ask(lambda store: store.page(limit + 1, after=after))
        shown = partial(key_object, now=self._core.clock.wall())
        last = found[min(limit, len(found)) - 1].name if found else None
        return {
            "object": "list",
            "data": [shown(key) for key in found[:limit]],
            "has_more": len(found) > limit,
            "last_name": last,
        }

    async def _show(self, name: str) -> dict[str, Any]:
        return key_object(await self._keys.ask(lambda store: store.get(name)), self._core.clock.wall())


def _below_admin(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix("/v1").removeprefix("/admin").strip("/")


def _refuse_others(body: dict[str, Any], known: tuple[str, ...]) -> None:
    for field in body:
        if field not in known:
            raise InvalidRequest(f"{field}: unknown; known are {', '.join(known) or 'none'}", param=field)
