"""GET /models: the models that the policy names, and for routes with globs those that the upstreams name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import jiter
from starlette.types import Receive, Scope, Send

from backends.errors import SlipstreamError, UnknownModel
from backends.operations import Operation
from backends.protocol import Backend, Call, Facts, Timeouts
from gateway.api.respond import respond
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.http.incoming import Incoming
from gateway.runtime import Runtime
from policies.matching.globs import allows
from policies.schema import RoutePolicy

_GLOB_SIGNS = frozenset("*?[")
_FRESH_S = 30.0
_TIMEOUT_S = 5.0
_MAX_LISTING_BYTES = 4 * 1024**2
_MAX_MODELS = 10_000


class Models:
    """The list, and one model by its id (which may have slashes). Bare ASGI."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._listings: dict[int, tuple[float, list[dict[str, Any]]]] = {}
        self._listings_of = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET /models and GET /models/{id}."""

        async def make(runtime: Runtime, principal: Principal, incoming: Incoming) -> object:
            models = [model for model in await self._models(runtime, principal) if principal.may_use(model["id"])]
            wanted = scope["path"].removeprefix("/v1").removeprefix("/models").strip("/")
            return _one(models, wanted) if wanted else {"object": "list", "data": models}

        await respond(self._core, scope, make)

    async def _models(self, runtime: Runtime, principal: Principal) -> list[dict[str, Any]]:
        """Each model once, in the policy's order."""
        models: dict[str, dict[str, Any]] = {}
        asked = await self._listings_for(runtime)
        for route in runtime.loaded.policy.routes:
            match = route.match
            if match.internal or not principal.may_take(route.name):
                continue
            for name in match.models:
                if _GLOB_SIGNS.isdisjoint(name):
                    models.setdefault(name, {"id": name, "object": "model", "created": 0, "owned_by": "slipstream"})
            globs = match.models or ("*",)
            for backend in _leaves_of(route, runtime):
                for model in asked.get(id(backend), ()):
                    if len(models) < _MAX_MODELS and allows(globs, model["id"]):
                        models.setdefault(model["id"], model)
        return list(models.values())

    async def _listings_for(self, runtime: Runtime) -> dict[int, list[dict[str, Any]]]:
        """What each upstream behind a glob lists; one that cannot be asked lists nothing."""
        if self._listings_of != runtime.revision:
            self._listings.clear()
            self._listings_of = runtime.revision
        backends = {
            id(backend): backend for route in runtime.loaded.policy.routes for backend in _behind_globs(route, runtime)
        }
        now = self._core.clock.now()
        stale = [
            backend
            for key, backend in backends.items()
            if key not in self._listings or now - self._listings[key][0] > _FRESH_S
        ]
        for backend, listing in zip(stale, await asyncio.gather(*map(self._ask, stale)), strict=True):
            self._listings[id(backend)] = (now, listing)
        return {key: self._listings[key][1] for key in backends}

    async def _ask(self, backend: Backend) -> list[dict[str, Any]]:
        deadline = self._core.clock.now() + _TIMEOUT_S
        call = Call(
            operation=Operation.PASSTHROUGH,
            method="GET",
            path="/models",
            raw=b"",
            body=None,
            model="",
            deadline=deadline,
            timeouts=Timeouts(connect_s=_TIMEOUT_S, total_s=_TIMEOUT_S),
            headers=[(b"accept", b"application/json"), (b"accept-encoding", b"identity")],
            facts=Facts(),
        )
        try:
            reply = await backend.send(call)
            try:
                body = reply.body if reply.stream is None else await reply.stream.read_all(_MAX_LISTING_BYTES)
            finally:
                await reply.aclose()
            # Too long a listing is none.
            listing = jiter.from_json(body or b"")
        except (SlipstreamError, ValueError):
            return []
        data = listing.get("data") if isinstance(listing, dict) and reply.status == 200 else None
        return [model for model in data if _is_model(model)] if isinstance(data, list) else []


def _leaves_of(route: RoutePolicy, runtime: Runtime) -> Iterable[Backend]:
    return [runtime.leaves[name] for name in dict.fromkeys(part.ref for part in route.backends)]


def _behind_globs(route: RoutePolicy, runtime: Runtime) -> Iterable[Backend]:
    models = route.match.models
    has_glob = not models or any(not _GLOB_SIGNS.isdisjoint(name) for name in models)
    if route.match.internal or not has_glob:
        return ()
    leaves = _leaves_of(route, runtime)
    return [backend for backend in leaves if Operation.PASSTHROUGH in backend.capabilities.operations]


def _is_model(model: object) -> bool:
    return isinstance(model, dict) and isinstance(model.get("id"), str) and bool(model["id"])


def _one(models: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    for model in models:
        if model["id"] == wanted:
            return model
    raise UnknownModel(f'the model "{wanted}" does not exist here, or this key may not use it', param="model")
