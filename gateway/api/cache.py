"""What operators ask of the semantic cache: entries, feedback, why a call is (not) served, what has been learned.

Under /v1/cache, for keys with `admin: true`, or for everybody where there are no keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Receive, Scope, Send

from backends.errors import (
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    UnknownEntry,
    UnknownPath,
)
from backends.operations import Operation
from backends.protocol import Call, Facts
from gateway.api.address import path_below, query_of
from gateway.api.respond import respond
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.decode import decode_body, decode_json
from gateway.http.incoming import Incoming, read_body
from gateway.routing import stack_for
from gateway.runtime import Runtime

if TYPE_CHECKING:
    from policies.cache.semantic.admin import Administration

_DEFAULT_COUNT = 100
_MAX_COUNT = 1000


class CacheRequest(msgspec.Struct, frozen=True):
    """One request to this API."""

    runtime: Runtime
    principal: Principal
    incoming: Incoming
    query: dict[str, str]
    body: bytes
    now: float
    id: str = ""


class Feedback(msgspec.Struct, frozen=True):
    """The body of a feedback: the entry, or the id of the request that was answered from it."""

    ok: bool
    entry: str | None = None
    id: str | None = None


_Answer = Callable[["Administration", CacheRequest], Awaitable[dict[str, Any]]]


class CacheApi:
    """All paths below /cache. Bare ASGI."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._paths: dict[tuple[str, str], _Answer] = {
            ("GET", "entries"): _entries,
            ("DELETE", "entries"): _delete_entries,
            ("GET", "entries/ID"): _entry,
            ("DELETE", "entries/ID"): _delete_entry,
            ("GET", "served/ID"): _served,
            ("POST", "feedback"): _feedback,
            ("POST", "explain"): _explain,
            ("GET", "policy"): _policy,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        core = self._core

        async def make(runtime: Runtime, principal: Principal, incoming: Incoming) -> object:
            check_admin(principal)
            raw = await read_body(receive, incoming, core.settings.max_body, core.pace())
            asked = CacheRequest(runtime, principal, incoming, query_of(scope), raw, core.clock.now())
            return await self.answer(scope["method"], path_below(scope, "cache"), asked)

        await respond(core, scope, make)

    async def answer(self, method: str, path: str, asked: CacheRequest) -> dict[str, Any]:
        """What a path below /cache says to an operator. Raises: UnknownPath, MethodNotAllowed, and what it refuses."""
        place, slash, entry = path.partition("/")
        place += slash and "/ID"
        answer = self._paths.get((method, place))
        if answer is None and any(known == place for _, known in self._paths):
            raise MethodNotAllowed(f"/cache/{path} does not take {method}")
        if answer is None:
            raise UnknownPath(f"there is no /cache/{path}")
        return await answer(_administration(asked.runtime), msgspec.structs.replace(asked, id=entry))


def check_admin(principal: Principal) -> None:
    """Raises: Forbidden for who is no operator."""
    if not principal.admin:
        raise Forbidden("this key may not look into the cache; an operator's key has `admin: true`")


def _administration(runtime: Runtime) -> Administration:
    if runtime.semantic is None:
        raise UnknownPath("no route of this gateway has a semantic cache")
    return runtime.semantic


async def _entries(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """GET entries?scope=&tag=&model=&limit=&after="""
    limit = asked.query.get("limit", str(_DEFAULT_COUNT))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MAX_COUNT):
        raise InvalidRequest(f"limit is a number from 1 to {_MAX_COUNT}", param="limit")
    found = await cache.entries(int(limit), after=asked.query.get("after"), **_where(asked.query))
    has_more = len(found) == int(limit)
    return {"object": "list", "data": found, "has_more": has_more, "last_id": found[-1]["id"] if found else None}


async def _entry(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """GET entries/{id}"""
    found = await cache.entry(asked.id)
    if found is None:
        raise _unknown(asked.id)
    return found


async def _delete_entry(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """DELETE entries/{id}"""
    if not await cache.delete(asked.id):
        raise _unknown(asked.id)
    return {"object": "cache.deleted", "deleted": 1}


async def _delete_entries(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """DELETE entries?scope=&tag=&model="""
    where = _where(asked.query)
    if not any(where.values()):
        raise InvalidRequest("say which entries: scope, tag or model", param="tag")
    return {"object": "cache.deleted", "deleted": await cache.delete_where(**where)}


async def _served(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """GET served/{request id}"""
    said = cache.served(asked.id)
    if said is None:
        raise _unknown(asked.id)
    return said


async def _feedback(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """POST feedback"""
    try:
        given = msgspec.convert(decode_json(asked.body), Feedback)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"feedback is {{entry or id, ok}}: {error}") from None
    if (given.entry is None) == (given.id is None):
        raise InvalidRequest("name the entry, or the id of the request that was answered from it", param="entry")
    said = await cache.feedback(is_right=given.ok, entry=given.entry, request_id=given.id)
    if said is None:
        raise _unknown(given.entry or given.id or "")
    return said


async def _explain(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """POST explain: a chat completion's body, and `as_key`, the name of the key to ask with"""
    body = decode_json(asked.body)
    name = body.pop("as_key", None) if isinstance(body, dict) else None
    raw = msgspec.json.encode(body)
    body, fields = decode_body(raw, Operation.CHAT)
    caller = _caller(asked, name)
    path = "/chat/completions"
    headers = asked.incoming.forwarded
    stack = stack_for(asked.runtime, caller, model=fields.model, path=path, headers=headers)
    route, timeouts = stack.policy.name, stack.timeouts
    if route not in cache.stages:
        return {"object": "cache.explanation", "route": route, "eligible": False, "reason": "no_semantic_cache"}
    call = Call(
        operation=Operation.CHAT,
        path=path,
        raw=raw,
        body=body,
        model=fields.model,
        user=fields.user or "",
        tenant=caller.tenant,
        key_id=caller.key,
        route=route,
        headers=headers,
        deadline=asked.now + timeouts.total_s,
        timeouts=timeouts,
        facts=Facts(),
    )
    return await cache.explain(call)


async def _policy(cache: Administration, asked: CacheRequest) -> dict[str, Any]:
    """GET policy"""
    return {"object": "list", "data": cache.policies()}


def _caller(asked: CacheRequest, name: object) -> Principal:
    """Whom to explain for: the caller itself where no key is named."""
    if name is None:
        return asked.principal
    for key in asked.runtime.loaded.policy.keys:
        if key.name == name and (caller := asked.runtime.keyring.named(key.name, key.tenant)) is not None:
            return caller
    raise InvalidRequest(f"the policy has no key named {name!r}", param="as_key")


def _where(query: dict[str, str]) -> dict[str, str | None]:
    return {name: query.get(name) for name in ("scope", "tag", "model")}


def _unknown(id: str) -> UnknownEntry:
    return UnknownEntry(f"nothing is known of {id[:100]!r}; entries expire, and old requests are forgotten")
