"""The ASGI application: finds who answers a path, hot paths first; and the lifespan."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from backends.errors import (
    ConfigurationError,
    ForeignOrigin,
    WebSocketRefused,
)
from backends.operations import BY_PATH, Operation
from gateway.api.endpoint import Endpoint
from gateway.api.own_apis import OWN_APIS, Needs
from gateway.core import Core
from gateway.door import refuse
from gateway.http.cors import preflight_headers
from gateway.http.keyless import KeylessAccess
from gateway.metrics.engine import EngineMetrics
from gateway.metrics.refresh import refresh_metrics
from gateway.metrics.scrape import Scrape
from gateway.pages import Pages
from gateway.process.vitals import Vitals
from gateway.record.gauge_samples import gauge_samples
from gateway.reload import Reloader, show_revision
from policies.failures import Failures
from policies.passthrough.rules import API_ROOTS

if TYPE_CHECKING:
    from gateway.batches.service import Batches
    from gateway.dashboard.app import Dashboard
    from gateway.ledger.ledger import Ledger
    from gateway.ledger.reader import LedgerReader
    from gateway.revisions import Revisions
    from policies.cache.store import Store

_logger = logging.getLogger(__name__)

_SLASHES = re.compile(rb"/{2,}")


class Application:
    """One worker's application."""

    def __init__(
        self,
        core: Core,
        store: Store,
        reloader: Reloader,
        batches: Batches | None,
        ledger: Ledger | None,
        reader: LedgerReader | None,
    ) -> None:
        self._core = core
        self._store = store
        self._reloader = reloader
        self._batches = batches
        self._ledger = ledger
        self._open_door = KeylessAccess(core.settings.cors_origins, core.settings.allowed_hosts)
        self._hot: dict[bytes, ASGIApp] = {}
        for path, operation in BY_PATH.items():
            endpoint = Endpoint(core, operation, path)
            self._hot[path.encode("ascii")] = self._hot[b"/v1" + path.encode("ascii")] = endpoint
        needs = Needs(core, batches, reader)
        made = ((api, api.make(needs)) for api in OWN_APIS)
        self._own: dict[str, tuple[ASGIApp, frozenset[str]]] = {
            api.root: (app, api.methods) for api, app in made if app is not None
        }
        self._passthrough = Endpoint(core, Operation.PASSTHROUGH, None)
        scrape = Scrape(core.metrics.registry, self._refresh_gauges, core.clock)
        self._pages = Pages(core, scrape, lambda: self.failure).application()
        self._make_dashboard = partial(_make_dashboard, core, scrape, reader, reloader.revisions)
        self._dashboard: Dashboard | None = None
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
        if (own := self._own.get(root)) is not None and (not own[1] or method in own[1]):
            return own[0]
        if path.startswith("/v1/") or root in API_ROOTS:
            return self._passthrough
        if root == "dashboard" or path == "/":
            if self._dashboard is None:
                self._dashboard = self._make_dashboard()
            return self._dashboard
        return self._pages

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
            if core.keys is not None:
                await core.keys.open()
            if self._ledger is not None:
                await self._ledger.open()
            await core.reserving.open()
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
        sampled = 0
        while True:
            await self._refresh_gauges()
            minute = int(self._core.clock.wall() // 60)
            if self._ledger is not None and minute != sampled:
                self._ledger.sample(gauge_samples(self._core.metrics, minute))
                sampled = minute
            await self._core.clock.sleep(5.0)

    async def _refresh_gauges(self) -> None:
        failures, others = self._gauges_left, self._vitals.failures
        others.append(self._core.reserving.limiter.failures)
        if self._ledger is not None:
            others.append(self._ledger.failures)
        if self._core.keys is not None:
            others.append(self._core.keys.failures)
        await refresh_metrics(self._core, failures=failures, others=others)
        for reason in self._core.metrics.of(EngineMetrics).failures():
            self._vitals.fail(reason)

    async def _close(self) -> None:
        await self._vitals.aclose()
        await self._reloader.aclose()
        if self._batches is not None:
            await self._batches.aclose()
        await self._core.reserving.aclose()
        self._core.observer.close()
        if self._core.booking is not None:
            self._core.booking.flush()
        if self._dashboard is not None:
            self._dashboard.close()
        if self._ledger is not None:
            await self._ledger.aclose()
        await self._store.aclose()
        await self._core.owners.aclose()
        if self._core.keys is not None:
            await self._core.keys.aclose()
        if self._core.tracer is not None:
            await asyncio.to_thread(self._core.tracer.close)


def _make_dashboard(core: Core, scrape: Scrape, reader: LedgerReader | None, revisions: Revisions) -> Dashboard:
    # Imported late: most gateways start far more often than somebody looks at them, and it is a tenth of their start.
    from gateway.dashboard.app import Dashboard

    return Dashboard(core, scrape, reader, revisions)
