"""The ASGI application: hot paths go straight to their endpoints, the rest through Starlette; and the lifespan."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backends.errors import (
    ConfigurationError,
    ForeignOrigin,
    MethodNotAllowed,
    SlipstreamError,
    UnknownPath,
    WebSocketRefused,
)
from backends.operations import BY_PATH, Operation
from gateway.api.cache import CacheApi
from gateway.api.endpoint import Endpoint
from gateway.api.models import Models
from gateway.core import Core
from gateway.door import refuse
from gateway.http.cors import preflight_headers
from gateway.http.incoming import Incoming
from gateway.http.keyless import KeylessAccess
from gateway.metrics.engine import EngineMetrics
from gateway.metrics.refresh import refresh_metrics
from gateway.metrics.scrape import Scrape
from gateway.process.vitals import Vitals
from gateway.reload import Reloader, show_revision
from policies.failures import Failures
from policies.passthrough.rules import API_ROOTS

if TYPE_CHECKING:
    from gateway.batches.service import Batches
    from policies.cache.store import Store

_logger = logging.getLogger(__name__)

_SLASHES = re.compile(rb"/{2,}")


class Application:
    """One worker's application."""

    def __init__(self, core: Core, store: Store, reloader: Reloader, batches: Batches | None = None) -> None:
        self._core = core
        self._store = store
        self._reloader = reloader
        self._batches = batches
        self._of_batches = _batch_apis(core, batches)
        self._open_door = KeylessAccess(core.settings.cors_origins, core.settings.allowed_hosts)
        self._hot: dict[bytes, ASGIApp] = {}
        for path, operation in BY_PATH.items():
            endpoint = Endpoint(core, operation, path)
            self._hot[path.encode("ascii")] = self._hot[b"/v1" + path.encode("ascii")] = endpoint
        self._models = Models(core)
        self._cache = CacheApi(core)
        self._passthrough = Endpoint(core, Operation.PASSTHROUGH, None)
        self._pages = self._starlette()
        self._scrape = Scrape(core.metrics.registry, self._refresh_gauges, core.clock)
        loops = {"reload": reloader.run, "observer": core.observer.run, "gauges": self._keep_gauges}
        self._vitals = Vitals(loops if batches is None else {**loops, "batches": batches.run}, core.clock)
        self._gauges_left = Failures("gauges", core.clock)
        self.opening_error: ConfigurationError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the lifespan."""
        kind = scope["type"]
        if kind == "http":
            if self._core.runtime.keyring.is_open:
                try:
                    self._open_door.check(scope["method"], scope["headers"])
                except ForeignOrigin as error:
                    await refuse(self._core, scope, error)
                    return
            await self._application_for(scope)(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        elif kind == "websocket":
            # Clients that can do without one go on over HTTP by themselves.
            refused = WebSocketRefused("WebSocket is not spoken here; send the same over HTTP, with `stream: true`")
            await refuse(self._core, scope, refused)

    @property
    def is_draining(self) -> bool:
        """Whether the end has been announced."""
        return self._core.is_draining

    @property
    def failure(self) -> str | None:
        """Why it cannot go on, where it cannot: then the process has to end."""
        return self._vitals.failure

    def begin_draining(self) -> None:
        """From now on /ready says that no new requests should come."""
        self._core.is_draining = True

    def request_reload(self) -> None:
        """Read the policy file again."""
        self._reloader.request()

    def _application_for(self, scope: Scope) -> ASGIApp:
        raw_path = scope["raw_path"]
        method = scope["method"]
        if (
            method == "POST"
            and (endpoint := self._hot.get(raw_path) or self._hot.get(raw_path.rstrip(b"/"))) is not None
        ):
            return endpoint
        if b"//" in raw_path:
            # Clients join a base URL that ends in a slash with a path that begins with one.
            scope["raw_path"] = _SLASHES.sub(b"/", raw_path)
            scope["path"] = unquote(scope["raw_path"].decode("ascii"))
            return self._application_for(scope)
        path = scope["path"]
        if method == "OPTIONS":
            return self._preflight
        below = path[3:] if path.startswith("/v1/") else path
        root = below.lstrip("/").split("/", 1)[0]
        if root == "models" and method in ("GET", "HEAD"):
            return self._models
        if root == "cache":
            return self._cache
        if root in self._of_batches:
            return self._of_batches[root]
        if path.startswith("/v1/") or root in API_ROOTS:
            return self._passthrough
        return self._pages

    def _starlette(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._show_metrics),
            ],
            exception_handlers={HTTPException: self._http_error},
        )

    async def _health(self, request: Request) -> Response:
        return self._failed() or Response(b'{"status":"ok"}', media_type="application/json")

    async def _ready(self, request: Request) -> Response:
        if (failed := self._failed()) is not None:
            return failed
        if self._core.is_draining:
            return Response(b'{"status":"draining"}', 503, media_type="application/json")
        return Response(b'{"status":"ready"}', media_type="application/json")

    async def _show_metrics(self, request: Request) -> Response:
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        pieces = await self._scrape.pieces(compressed=compressed)
        headers = {"vary": "accept-encoding", "content-length": str(sum(map(len, pieces)))}
        if compressed:
            headers["content-encoding"] = "gzip"
        return StreamingResponse(_each(pieces), headers=headers, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _failed(self) -> Response | None:
        if self.failure is None:
            return None
        told = msgspec.json.encode({"status": "failed", "reason": self.failure})
        return Response(told, 503, media_type="application/json")

    async def _http_error(self, request: Request, error: Exception) -> Response:
        """Starlette's own refusals, in OpenAI's shape."""
        assert isinstance(error, HTTPException), "registered for that class"
        own: SlipstreamError
        if error.status_code == 405:
            own = MethodNotAllowed(f"{request.url.path} does not take {request.method}")
        else:
            own = UnknownPath(f"there is no {request.url.path}; the API begins at /v1")
        request_id = self._core.request_id(Incoming(request.scope["headers"]))
        headers = {**(error.headers or {}), "x-request-id": request_id}
        return Response(own.body(), own.status, headers=headers, media_type="application/json")

    async def _preflight(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = preflight_headers(scope["headers"], self._core.settings.cors_origins)
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open, serve until the server says stop, close."""
        await receive()
        core = self._core
        try:
            await self._store.open()
            await core.owners.open()
            if self._batches is not None:
                await self._batches.open()
            await core.runtime.open()
        except ConfigurationError as error:
            self.opening_error = error
            await self._close()
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        show_revision(core)
        try:
            self._vitals.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _keep_gauges(self) -> None:
        # Workers answer each other's scrapes from shared files, so each keeps its own gauges fresh.
        while True:
            await self._refresh_gauges()
            await self._core.clock.sleep(5.0)

    async def _refresh_gauges(self) -> None:
        failures, others = self._gauges_left, self._vitals.failures
        await refresh_metrics(self._core, failures=failures, others=others)
        for reason in self._core.metrics.of(EngineMetrics).failures():
            self._vitals.fail(reason)

    async def _close(self) -> None:
        await self._vitals.aclose()
        await self._reloader.aclose()
        if self._batches is not None:
            await self._batches.aclose()
        self._core.observer.close()
        await self._store.aclose()
        await self._core.owners.aclose()
        if self._core.tracer is not None:
            await asyncio.to_thread(self._core.tracer.close)


async def _each(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _batch_apis(core: Core, batches: Batches | None) -> dict[str, ASGIApp]:
    """Who answers /v1/files and /v1/batches, where the gateway does."""
    if batches is None:
        return {}
    from gateway.api.batches import BatchesApi
    from gateway.api.files import FilesApi

    return {"files": FilesApi(core, batches), "batches": BatchesApi(core, batches)}
