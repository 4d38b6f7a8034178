"""The dashboard's addresses: its page and files, who signs in, and what the page asks. Nothing of it runs unasked."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backends.errors import InvalidRequest, Unauthorized, UnknownPath
from gateway.api.address import query_of
from gateway.api.keys import KeysApi
from gateway.core import Core
from gateway.dashboard import access
from gateway.dashboard.access import Seal, Sessions
from gateway.dashboard.assets import POLICY, Asset, Assets
from gateway.dashboard.budgets import shown_budgets
from gateway.dashboard.caches import CachesPage
from gateway.dashboard.filters import condition_of
from gateway.dashboard.inquiry import Answer, Inquiry
from gateway.dashboard.live import Live
from gateway.dashboard.oidc.issuer import SignInFailed
from gateway.dashboard.oidc.sign_in import PENDING_COOKIE, VISIT_MARK, OidcSignIn, pending_cookie
from gateway.dashboard.policy.page import PolicyPage
from gateway.dashboard.queries import calls
from gateway.dashboard.queries.backends import NEWEST, backends, served
from gateway.dashboard.queries.book import Book, Memory
from gateway.dashboard.queries.happened import happened
from gateway.dashboard.queries.overview import overview
from gateway.dashboard.queries.service import service
from gateway.door import refuse
from gateway.http.auth import ANONYMOUS, Principal
from gateway.http.decode import decode_json
from gateway.http.incoming import Incoming, read_body
from gateway.ledger.reader import LedgerReader
from gateway.ledger.tables import MADE_UP, SESSION_SECRET, read_settings
from gateway.metrics.scrape import Scrape
from gateway.pages import application
from gateway.revisions import Revisions
from gateway.runtime import Runtime
from policies.dashboard.settings import CALLBACK

_logger = logging.getLogger(__name__)
ROOT = "dashboard"
_MAX_BODY_BYTES = 64 * 1024
_MOST_BUDGETS = 1000
_LEAST_COMPRESSED = 1000
_SAFE = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Dashboard:
    """All that is below /dashboard. Bare ASGI. `reader` is None where no ledger is kept."""

    def __init__(self, core: Core, scrape: Scrape, reader: LedgerReader | None, revisions: Revisions) -> None:
        self._core = core
        self._live = Live(scrape, core.clock)
        self._reader = reader
        self._memory = Memory()
        self._assets = Assets()
        self._seal: Seal | None = None
        self._oidc = OidcSignIn(core.clock)
        self._keys = None if core.keys is None else KeysApi(core, core.keys)
        self._caches = CachesPage(core, self._live)
        self._revisions = revisions
        self._policy = PolicyPage(core, revisions)
        self._of_ledger = {self._overview, self._errors, self._requests, self._caches.rates}
        """Answers that stay the same while nothing comes to the ledger."""
        api = f"/{ROOT}/api"
        answers: tuple[tuple[str, str, Answer], ...] = (
            ("GET", "me", self._me),
            ("GET", "overview", self._overview),
            ("GET", "backends", self._backends),
            ("GET", "fleet", self._fleet),
            ("GET", "service", self._service),
            ("GET", "errors", self._errors),
            ("GET", "budgets", self._budgets),
            ("GET", "keys", self._list_keys),
            ("GET", "requests", self._requests),
            ("GET", "requests/{seq:int}", self._request),
            ("GET", "caches", self._caches.rates),
            ("GET", "cache/{path:path}", self._caches.administer),
            ("GET", "policy", self._policy.show),
            ("POST", "policy/try", self._policy.try_on),
            ("POST", "simulate", self._policy.simulate),
            ("POST", "keys", self._change_key),
            ("POST", "keys/{name:path}", self._change_key),
            ("POST", "raises", self._raise),
            ("POST", "cache/{path:path}", self._caches.administer),
            ("DELETE", "cache/{path:path}", self._caches.administer),
        )
        routes = [
            Route(f"{api}/sign-in", self._bordered(self._ways_in), methods=["GET"]),
            Route(f"{api}/sign-in", self._bordered(self._sign_in), methods=["POST"]),
            Route(f"{CALLBACK}/begin", self._bordered(self._oidc_begin), methods=["GET"]),
            Route(CALLBACK, self._bordered(self._oidc_end), methods=["GET"]),
            Route(f"{api}/sign-out", self._bordered(self._sign_out), methods=["POST"]),
            *(
                Route(f"{api}/{path}", self._bordered(self._answer(answer)), methods=[method])
                for method, path, answer in answers
            ),
            Route(f"/{ROOT}/assets/{{hash}}/{{name:path}}", self._bordered(self._asset), methods=["GET"]),
            Route("/", self._bordered(_to_the_page)),
            Route(f"/{ROOT}{{rest:path}}", self._bordered(self._page), methods=["GET"]),
        ]
        self._application = application(core, routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._application(scope, receive, send)

    def close(self) -> None:
        """Let go of the ledger."""
        if self._reader is not None:
            self._reader.close()

    def _bordered(self, answer: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
        async def bordered(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = await answer(Request(scope, receive))
            except Exception as error:  # a named border: one page's failure is nobody else's
                await refuse(self._core, scope, error)
            else:
                response.raw_headers.extend(_SAFE)
                await response(scope, receive, send)

        return _Endpoint(bordered)

    async def _page(self, request: Request) -> Response:
        rest: str = request.path_params["rest"]
        if rest.startswith(("/api/", "/assets/")) or (rest and not rest.startswith("/")):
            raise UnknownPath(f"there is no {request.url.path}")
        page = await asyncio.to_thread(lambda: self._assets.page)
        return _sent(page, request, {"cache-control": "no-store"})

    async def _asset(self, request: Request) -> Response:
        files = await asyncio.to_thread(lambda: self._assets.files)
        found = files.get(request.path_params["name"])
        if found is None or request.path_params["hash"] != self._assets.hash:
            raise UnknownPath(f"there is no {request.url.path}")
        return _sent(found, request, {"cache-control": "public, max-age=31536000, immutable"})

    async def _sign_in(self, request: Request) -> Response:
        access.check_write(request.headers, has_token=False)
        body = await self._read(request)
        key = body.get("key")
        if not isinstance(key, str) or not key.isascii() or not key.strip():
            raise Unauthorized("name a key")
        principal = await self._core.runtime.keyring.authenticate(key.strip().encode())
        access.visitor_of(principal)
        cookie = Sessions(await self._sealed(), self._core.clock).cookie(principal)
        return _json({"ok": True}, request, {"set-cookie": access.set_cookie(cookie, is_secure=_is_secure(request))})

    async def _ways_in(self, request: Request) -> Response:
        has_provider = self._core.runtime.loaded.policy.dashboard.oidc is not None
        return _json({"provider": has_provider}, request, {"cache-control": "no-store"})

    async def _oidc_begin(self, request: Request) -> Response:
        try:
            policy = self._core.runtime.loaded.policy.dashboard.oidc
            url, pending = await self._oidc.begin(policy, await self._sealed())
        except SignInFailed as failure:
            return _not_signed_in(failure)
        cookie = pending_cookie(pending, is_secure=_is_secure(request))
        return RedirectResponse(url, 302, {"cache-control": "no-store", "set-cookie": cookie})

    async def _oidc_end(self, request: Request) -> Response:
        try:
            policy = self._core.runtime.loaded.policy.dashboard.oidc
            pending = request.cookies.get(PENDING_COOKIE, "")
            cookie = await self._oidc.end(policy, await self._sealed(), query_of(request.scope), pending)
        except SignInFailed as failure:
            answer = _not_signed_in(failure)
        else:
            answer = RedirectResponse(f"/{ROOT}", 302, {"cache-control": "no-store"})
            answer.headers.append("set-cookie", access.set_cookie(cookie, is_secure=_is_secure(request)))
        answer.headers.append("set-cookie", pending_cookie("", is_secure=_is_secure(request)))
        return answer

    async def _sign_out(self, request: Request) -> Response:
        access.check_write(request.headers, has_token=True)
        return _json({"ok": True}, request, {"set-cookie": access.set_cookie("", is_secure=_is_secure(request))})

    def _answer(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            if request.method not in ("GET", "HEAD"):
                access.check_write(request.headers, has_token=True)
            runtime = self._core.runtime
            principal = await self._principal(request, runtime)
            visitor = access.visitor_of(principal)
            if self._reader is None:
                raise UnknownPath("no ledger is kept: add `ledger` to the policy")
            query = query_of(request.scope)
            now_s = self._core.clock.wall()
            inquiry = Inquiry(request, runtime, principal, visitor, query, self._reader, self._memory, now_s, [])
            headers = {"cache-control": "no-store"}
            if answer in self._of_ledger:
                headers["etag"] = version = await inquiry.version()
                if request.headers.get("if-none-match") == version:
                    return Response(status_code=304, headers=headers)
            said = await answer(inquiry)
            headers["server-timing"] = f"ledger;dur={sum(inquiry.spent_s) * 1e3:.1f}"
            return said if isinstance(said, Response) else _json(said, request, headers)

        return answered

    async def _principal(self, request: Request, runtime: Runtime) -> Principal:
        if runtime.keyring.is_open:
            return ANONYMOUS
        cookie = request.cookies.get(access.COOKIE)
        if not cookie:
            raise Unauthorized("sign in to see the dashboard")
        if cookie.startswith(VISIT_MARK):
            return self._oidc.principal(runtime.loaded.policy.dashboard.oidc, await self._sealed(), cookie)
        return Sessions(await self._sealed(), self._core.clock).principal(cookie, runtime.keyring)

    async def _sealed(self) -> Seal:
        """By a secret that all gateways of this ledger share. Raises: StoreUnavailable where it is away."""
        if self._seal is None:
            if self._reader is None:
                raise UnknownPath("no ledger is kept: add `ledger` to the policy")
            secret = await self._reader.ask(lambda transaction: read_settings(transaction)[SESSION_SECRET])
            self._seal = Seal(bytes.fromhex(secret))
        return self._seal

    async def _me(self, inquiry: Inquiry) -> object:
        visitor, reader = inquiry.visitor, inquiry.reader
        made_up = await inquiry.ask(lambda book: MADE_UP in read_settings(book.transaction))
        return {
            "name": visitor.name,
            "tenant": visitor.scope.tenant,
            "may_manage": visitor.may_manage and self._keys is not None,
            "is_admin": visitor.is_admin,
            "has_keys": not inquiry.runtime.keyring.is_open,
            "zone": reader.time_zone,
            "is_made_up": made_up,
            "revision": inquiry.runtime.revision,
            "models": sorted(inquiry.runtime.model_labels)[:100],
        }

    async def _overview(self, inquiry: Inquiry) -> object:
        about = inquiry.selection()
        sees_all, revisions = inquiry.visitor.sees_all, self._revisions

        def seen(book: Book) -> dict[str, Any]:
            marks = happened(book.transaction, about.span, revisions) if sees_all else []
            return {**overview(book, about), "marks": marks}

        found = await inquiry.ask(seen)
        wrong = (await self._live.now())["semantic"] if sees_all else {}
        return {**found, "wrong": wrong, "as_of": about.now_s}

    async def _backends(self, inquiry: Inquiry) -> object:
        inquiry.check_sees_all()
        about = inquiry.selection()
        found = await inquiry.ask(lambda book: backends(book, about))
        now = (await self._live.now())["backends"]
        known = {row["name"]: row for row in found}
        names = sorted({*known, *inquiry.runtime.loaded.backends})
        nothing = {"calls": [], "failed": 0, "input_tokens": 0, "cached_tokens": 0, "mean_ttft_ms": None}
        nothing |= {"in_flight": [], "minutes_out": 0, "minutes_silent": 0}
        rows = [{**nothing, **known.get(name, {}), "name": name, "now": now.get(name, {})} for name in names]
        return {"at": [tick.at for tick in about.span.ticks], "rows": rows}

    async def _fleet(self, inquiry: Inquiry) -> object:
        inquiry.check_sees_all()
        now = await self._live.now()
        pairs = await inquiry.ask(lambda book: served(book.transaction))
        return {**{name: now[name] for name in ("replicas", "routes", "engines")}, "served": pairs, "newest": NEWEST}

    async def _service(self, inquiry: Inquiry) -> object:
        about = inquiry.selection()
        found = await inquiry.ask(lambda book: service(book, about))
        routes = (await self._live.now())["routes"] if inquiry.visitor.sees_all else {}
        return {**found, "now": routes, "as_of": about.now_s}

    async def _errors(self, inquiry: Inquiry) -> object:
        since_us = inquiry.selection().span.ticks[0].at * 10**6
        scope = inquiry.visitor.scope
        return await inquiry.ask(lambda book: calls.failures(book.transaction, scope, since_us))

    async def _requests(self, inquiry: Inquiry) -> object:
        query, scope = inquiry.query, inquiry.visitor.scope
        wanted = condition_of(query.get("filter", ""))
        before, after = (_number(query.get(name)) for name in ("before", "after"))
        return await inquiry.ask(lambda book: calls.page(book.transaction, scope, wanted, before=before, after=after))

    async def _request(self, inquiry: Inquiry) -> object:
        seq, scope = inquiry.request.path_params["seq"], inquiry.visitor.scope
        return await inquiry.ask(lambda book: calls.one(book.transaction, scope, seq))

    async def _budgets(self, inquiry: Inquiry) -> object:
        found = await self._core.reserving.view.states(inquiry.runtime)
        shown = shown_budgets(found.states, inquiry.visitor.scope, inquiry.now_s)
        return {"rows": shown[:_MOST_BUDGETS], "total": len(shown), "is_whole": found.is_whole}

    async def _list_keys(self, inquiry: Inquiry) -> object:
        inquiry.check_sees_all()
        policy = inquiry.runtime.loaded.policy
        of_file = [{"name": key.name, "tenant": key.tenant, "team": key.team} for key in policy.keys]
        if self._keys is None or not inquiry.visitor.may_manage:
            return {"of_file": of_file, "stored": None}
        return {"of_file": of_file, "stored": await self._keys.page(inquiry.query)}

    async def _change_key(self, inquiry: Inquiry) -> object:
        access.check_manages(inquiry.visitor)
        name = inquiry.request.path_params.get("name", "")
        if self._keys is None or (name and not name.endswith(("/rotate", "/revoke"))):
            raise UnknownPath(f"there is no {inquiry.request.url.path}")
        return await self._keys.change(name, await self._read(inquiry.request), inquiry.runtime, inquiry.principal)

    async def _raise(self, inquiry: Inquiry) -> object:
        access.check_manages(inquiry.visitor)
        if self._keys is None:
            raise UnknownPath("budgets are raised where keys are stored: add `stores.keys` to the policy")
        body = await self._read(inquiry.request)
        return await self._keys.budgets.add_raise(body, inquiry.runtime, inquiry.principal)

    async def _read(self, request: Request) -> dict[str, Any]:
        incoming = Incoming(request.scope["headers"])
        body = decode_json(await read_body(request.receive, incoming, _MAX_BODY_BYTES, self._core.pace()))
        if not isinstance(body, dict):
            raise InvalidRequest("the body is not a JSON object")
        return body


class _Endpoint:
    """An ASGI application that Starlette takes for one: a function would be called with a request."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)


async def _to_the_page(request: Request) -> Response:
    """Of browsers; a program that asks for / has the wrong address."""
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        raise UnknownPath("there is no /; the API begins at /v1")
    return RedirectResponse(f"/{ROOT}", 307)


def _not_signed_in(failure: SignInFailed) -> Response:
    """Back to the page, which says why in words of its own."""
    _logger.warning("a sign-in has failed: %s", failure)
    return RedirectResponse(f"/{ROOT}?signed_in={failure.reason}", 302, {"cache-control": "no-store"})


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest("before, after: the number of a call")
    return int(text)


def _is_secure(request: Request) -> bool:
    """Whether the browser came over TLS, here or at a proxy in front."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def _sent(asset: Asset, request: Request, headers: dict[str, str]) -> Response:
    headers = {**headers, "vary": "accept-encoding"}
    if not _takes_gzip(request):
        return Response(gzip.decompress(asset.body), headers=headers, media_type=asset.media_type)
    return Response(asset.body, headers={**headers, "content-encoding": "gzip"}, media_type=asset.media_type)


def _json(said: object, request: Request, headers: dict[str, str]) -> Response:
    body = msgspec.json.encode(said)
    headers = {**headers, "vary": "accept-encoding"}
    if len(body) > _LEAST_COMPRESSED and _takes_gzip(request):
        body = gzip.compress(body, 1)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers, media_type="application/json")


def _takes_gzip(request: Request) -> bool:
    """Whether the client can read it: a browser does, curl and scripts only where they say so."""
    return "gzip" in request.headers.get("accept-encoding", "")
