"""Caches for the page: how often they answer, how sure the semantic one is, and its entries for operators."""

from __future__ import annotations

from typing import Any

from gateway.api.cache import CacheApi, CacheRequest
from gateway.core import Core
from gateway.dashboard import access
from gateway.dashboard.inquiry import Inquiry
from gateway.dashboard.live import Live
from gateway.dashboard.observed import observed
from gateway.dashboard.queries.caches import caches
from gateway.http.incoming import Incoming, read_body

_MAX_BODY_BYTES = 1024 * 1024


class CachesPage:
    """What it asks for."""

    def __init__(self, core: Core, live: Live) -> None:
        self._core = core
        self._live = live
        self._api = CacheApi(core)

    async def rates(self, inquiry: Inquiry) -> object:
        """Hits over a span; how sure the semantic cache is of each route is known of all tenants together only."""
        about = inquiry.selection()
        found = await inquiry.ask(lambda book: caches(book, about))
        semantic = (await self._live.now())["semantic"] if inquiry.visitor.sees_all else {}
        return {
            **found,
            "semantic": semantic,
            "observed": {route: says for route, of in semantic.items() if (says := observed(of)) is not None},
            "has_entries": inquiry.visitor.is_admin and inquiry.runtime.semantic is not None,
            "as_of": about.now_s,
        }

    async def administer(self, inquiry: Inquiry) -> dict[str, Any]:
        """The admin API of the semantic cache, as it is below /v1/cache."""
        access.check_admin(inquiry.visitor)
        request = inquiry.request
        incoming = Incoming(request.scope["headers"])
        # The browser's fields are no client's: who asks for an explanation has none of a call's.
        incoming.forwarded = []
        body = await read_body(request.receive, incoming, _MAX_BODY_BYTES, self._core.pace())
        asked = CacheRequest(inquiry.runtime, inquiry.principal, incoming, inquiry.query, body, self._core.clock.now())
        return await self._api.answer(request.method, request.path_params["path"], asked)
