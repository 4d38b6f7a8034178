"""What machines that look after a gateway ask of it, without a key: how it is, and its metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backends.errors import MethodNotAllowed, SlipstreamError, UnknownPath
from gateway.core import Core
from gateway.door import refuse
from gateway.http.incoming import Incoming
from gateway.metrics.scrape import Scrape

PATHS = ("/health", "/ready", "/metrics")


class Pages:
    """`failure` says why the process cannot go on, where it cannot."""

    def __init__(self, core: Core, scrape: Scrape, failure: Callable[[], str | None]) -> None:
        self._core = core
        self._scrape = scrape
        self._failure = failure

    def application(self) -> ASGIApp:
        """Answers each of them, and 404 and 405 elsewhere."""
        pages = dict(zip(PATHS, (self._health, self._ready, self._metrics), strict=True))
        routes = [Route(path, _Page(self._core, answer), methods=["GET"]) for path, answer in pages.items()]
        return application(self._core, routes)

    async def _health(self, request: Request) -> Response:
        return self._failed() or _status("ok")

    async def _ready(self, request: Request) -> Response:
        if (failed := self._failed()) is not None:
            return failed
        return _status("draining", 503) if self._core.is_draining else _status("ready")

    async def _metrics(self, request: Request) -> Response:
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        pieces = await self._scrape.pieces(compressed=compressed)
        headers = {"vary": "accept-encoding", "content-length": str(sum(map(len, pieces)))}
        if compressed:
            headers["content-encoding"] = "gzip"
        return StreamingResponse(_each(pieces), headers=headers, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _failed(self) -> Response | None:
        reason = self._failure()
        return None if reason is None else _status("failed", 503, reason=reason)


class _Page:
    """One of them: what fails in it is told as everywhere else."""

    def __init__(self, core: Core, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._core = core
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(Request(scope, receive))
        except Exception as error:  # a named border: one page's failure is nobody else's
            await refuse(self._core, scope, error)
        else:
            await response(scope, receive, send)


def application(core: Core, routes: Sequence[BaseRoute]) -> ASGIApp:
    """Of these routes. Elsewhere it answers 404 and 405, in OpenAI's shape."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for that class"
        own: SlipstreamError
        if error.status_code == 405:
            own = MethodNotAllowed(f"{request.url.path} does not take {request.method}")
        else:
            own = UnknownPath(f"there is no {request.url.path}; the API begins at /v1")
        request_id = core.request_id(Incoming(request.scope["headers"]))
        headers = {**(error.headers or {}), "x-request-id": request_id}
        return Response(own.body(), own.status, headers=headers, media_type="application/json")

    starlette = Starlette(routes=routes, exception_handlers={HTTPException: refused})
    starlette.router.redirect_slashes = False
    return starlette


def _status(status: str, code: int = 200, **more: str) -> Response:
    return Response(msgspec.json.encode({"status": status, **more}), code, media_type="application/json")


async def _each(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
