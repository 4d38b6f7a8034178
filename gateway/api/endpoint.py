"""The way of a call: read, authenticate, match a route, ask its stack, relay the answer. Bare ASGI, one class for all.

What differs between operations is how the body is read; see `gateway/http/decode.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from starlette.types import Receive, Scope, Send

from backends.drafts.push import DRAFT_HEADER, DraftsBy
from backends.errors import (
    ClientGone,
    Draining,
    InvalidRequest,
    MethodNotAllowed,
    SlipstreamError,
    UnsupportedEncoding,
    UpstreamCut,
)
from backends.operations import Operation
from backends.protocol import Call, Reply
from backends.stream import StreamEnd
from gateway.api.custody import Custody
from gateway.core import Core
from gateway.door import own_headers, serve
from gateway.http.agent import agent_family
from gateway.http.auth import Principal
from gateway.http.body_budget import UNCOUNTED_BYTES
from gateway.http.connection import ClientConnection, connection_of
from gateway.http.decode import LONG_BYTES, decode_body, decode_json, is_model_name
from gateway.http.incoming import Incoming, ascii_text, read_body
from gateway.http.multipart import MultipartForm, is_form, read_form
from gateway.http.relay import LateNews, send_error_event, send_stream
from gateway.limits.asked import asked_of
from gateway.limits.headers import without_rates
from gateway.record.exchange import Exchange
from gateway.routing import check_operation, not_for_this_key, stack_for
from gateway.runtime import Runtime, Stack
from policies.admission.urgency import URGENCY_HEADERS, read_urgency
from policies.objects.names import is_of_collection, may_name_objects
from policies.passthrough.paths import check_is_no_operation, plain_path
from policies.passthrough.rules import METHODS

_FETCHES = frozenset({"GET", "HEAD", "DELETE"})
_OF_A_PART = frozenset({b"range", b"if-range"})
_Read = TypeVar("_Read")


class RequestedFields(NamedTuple):
    """What the body says that the gateway acts on."""

    body: dict[str, Any] | None
    model: str
    stream: bool = False
    include_usage: bool = False
    user: str = ""
    is_read: bool = True
    """Whether nothing in the body may name an object unseen."""
    form: MultipartForm | None = None
    """What was found in it, where it is one."""


class Endpoint:
    """One operation. `path` is below the API root; None takes it from each request (pass-through)."""

    def __init__(self, core: Core, operation: Operation, path: str | None) -> None:
        self._core = core
        self._operation = operation
        self._path = path
        self._custody = Custody(core.owners, core.clock)
        self._passes = operation is Operation.PASSTHROUGH
        self._may_keep = operation.traits.may_keep_objects

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        return serve(self._core, self._operation, scope, partial(self._answer, scope, receive, send))

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, incoming: Incoming, exchange: Exchange, runtime: Runtime
    ) -> None:
        principal = exchange.principal
        max_bytes = self._core.settings.max_body
        connection = connection_of(scope)
        raw = connection.take_body(max_bytes)
        if raw is None or len(raw) > UNCOUNTED_BYTES:
            held = exchange.held_body = self._core.bodies.hold(principal.key, principal.tenant)
            if raw is None:
                raw = await read_body(receive, incoming, max_bytes, self._core.pace(), held)
            else:
                held.grow(len(raw))
        method: str = scope["method"]
        path, plain = (self._path, self._path) if self._path is not None else _paths_below_root(scope)
        if self._passes:
            _ask_for_plain_answer(incoming, method, plain)
            asked = await self._read_leniently(raw, incoming)
        elif len(raw) > LONG_BYTES:
            asked = await self._aside(partial(self._read, raw, incoming))
        else:
            asked = self._read(raw, incoming)
        exchange.model = asked.model
        exchange.stream = asked.stream
        if asked.model in runtime.model_labels:
            exchange.model_label = asked.model
        placed = None
        if self._passes:
            if method not in METHODS:
                raise MethodNotAllowed(f"{path} does not take {method}")
            check_is_no_operation(method, path, plain, has_body=bool(raw))
            placed = await self._custody.place(plain, runtime, principal)
            is_for_a_model = asked.model or (raw and not asked.is_read)
            if placed is not None and is_for_a_model and not principal.may_use(asked.model):
                raise not_for_this_key(asked.model, path)
        stack, pinned = placed or (
            stack_for(runtime, principal, model=asked.model, method=method, path=path, headers=incoming.forwarded),
            "",
        )
        exchange.route = stack.policy.name
        exchange.asked_prices = stack.asked_prices
        check_operation(stack, self._operation, path)
        exchange.user = asked.user
        exchange.session = incoming.session()
        exchange.agent = agent_family(incoming.user_agent)
        if runtime.rules.all or principal.rules:
            terms = stack.passes.terms(method, plain) if self._passes else None
            request = asked_of(self._operation, asked.body, raw, terms)
            stack = await self._core.reserving.let_in(request, stack, exchange, runtime)
            exchange.route = stack.policy.name
            check_operation(stack, self._operation, path)
        names, keeps = self._concerns_objects(asked, stack)
        if names:
            pinned = await self._check(method, plain, raw, asked, stack, principal, pinned)
        slo, priority = stack.slo, principal.priority
        if slo is not None:
            if incoming.urgency:
                slo, priority = read_urgency(slo, priority, incoming.urgency)
                # A gateway behind this one would count the time anew, and take the word of this one's key for it.
                incoming.forwarded = [field for field in incoming.forwarded if field[0] not in URGENCY_HEADERS]
            exchange.slo = slo
            exchange.priority = priority
            exchange.request_bytes = len(raw)
        query = scope["query_string"]
        call = Call(
            operation=self._operation,
            method=method,
            path=path,
            query=ascii_text(query, "query") if query else "",
            raw=raw,
            body=asked.body,
            model=asked.model,
            stream=asked.stream,
            include_usage=asked.include_usage,
            user=asked.user,
            tenant=principal.tenant,
            key_id=principal.key,
            route=stack.policy.name,
            pinned=pinned,
            model_at=_model_at(asked.form),
            request_id=exchange.request_id,
            cache_control=incoming.cache_control,
            headers=incoming.forwarded,
            deadline=exchange.started_at + stack.timeouts.total_s,
            timeouts=stack.timeouts,
            slo=slo,
            priority=priority,
            terms=stack.passes.terms(method, plain) if self._passes else None,
            facts=exchange.facts,
            answers=self._core.answers,
            drafts=_drafts_by(incoming) if principal.drafts and asked.stream else DraftsBy.NOBODY,
        )
        if self._core.booking is not None:
            self._core.booking.begins(exchange)
        await self._ask_and_relay(call, stack, connection, send, incoming=incoming, exchange=exchange, keeps=keeps)

    def _concerns_objects(self, asked: RequestedFields, stack: Stack) -> tuple[bool, bool]:
        """Whether the call may name what an upstream keeps, and whether it may have something kept."""
        if not self._may_keep or not stack.passes_on:
            return False, False
        body = asked.body
        if body is None or self._operation is not Operation.CHAT:
            return True, True
        # Most chats do neither.
        are_owned = stack.passes.objects_are_owned
        return are_owned and may_name_objects(body), bool(body.get("store") or (are_owned and body.get("audio")))

    async def _check(
        self,
        method: str,
        path: str,
        raw: bytes,
        asked: RequestedFields,
        stack: Stack,
        principal: Principal,
        pinned: str,
    ) -> str:
        """The backend that keeps what the call is about, empty where it is free. Raises: as `Custody` does."""
        are_owned = stack.passes.objects_are_owned
        if self._passes:
            self._custody.check_path(method, path, stack, pinned)
            if are_owned and raw and not asked.is_read:
                raise InvalidRequest(f"the body of {method} {path} cannot be read: send JSON, or a form")
        tenant = principal.tenant
        if (form := asked.form) is not None:
            if form.lines is not None and are_owned:
                begin, end = form.lines
                pinned = await self._custody.check_lines(raw[begin:end], stack, tenant, pinned)
            return await self._custody.check_named(form.named, stack, tenant, pinned)
        return await self._custody.check_body(raw, asked.body, stack, tenant, pinned) if asked.body else pinned

    async def _ask_and_relay(
        self,
        call: Call,
        stack: Stack,
        connection: ClientConnection,
        send: Send,
        *,
        incoming: Incoming,
        exchange: Exchange,
        keeps: bool,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "endpoints run in a task"
        if connection.is_gone:
            raise ClientGone("the client left before its request was read")
        connection.answering.add(task)
        self._core.overdue.watch(task, call.deadline, connection.flow)
        reply: Reply | None = None
        late: LateNews | None = None
        try:
            reply = await stack.backend.send(call)
            late = await self._custody.note(call, reply, stack) if keeps else None
            exchange.status = reply.status
            headers = own_headers(self._core, exchange, incoming)
            upstream = reply.headers
            headers += upstream if not exchange.rate_headers else without_rates(upstream)
            if reply.body is not None:
                await connection.answer(reply.status, headers, reply.body)
            else:
                hides_usage = not call.include_usage and call.operation.traits.has_choices
                error = await send_stream(
                    send, connection, reply, headers, hides_usage=hides_usage, facts=exchange.facts, late=late
                )
                if error is not None:
                    exchange.error_code, exchange.fault = error.reason, error.fault
        except asyncio.CancelledError:
            if connection.is_gone:
                task.uncancel()
                if reply is not None and reply.stream is not None and reply.stream.is_over:
                    exchange.facts.stream_end = StreamEnd.CLEAN
                    if late is not None:
                        await late.share()
                    return
                if reply is not None and reply.stream is not None:
                    await reply.stream.aclose()
                    if reply.stream.end is StreamEnd.UPSTREAM_CUT:
                        # It has read the error with which the upstream broke off.
                        cut = UpstreamCut("the upstream ended its stream with an error")
                        exchange.error_code, exchange.fault = cut.reason, cut.fault
                        return
                exchange.facts.stream_end = StreamEnd.CLIENT_GONE
                raise ClientGone("the client left before the answer was whole") from None
            own: SlipstreamError | None = self._core.overdue.error_for(task)
            if own is None and self._core.is_draining:
                own = Draining("the gateway is shutting down and could not wait any longer")
            if own is None:
                raise
            task.uncancel()
            if reply is not None and reply.stream is not None:
                await reply.stream.aclose(StreamEnd.ERROR)
                send_error_event(connection, reply, own)
            raise own from None
        finally:
            self._core.overdue.release(task)
            connection.answering.discard(task)
            if reply is not None:
                await reply.aclose()
        if reply.body is not None and connection.flow.write_paused:
            # Its bytes count until the client has taken them.
            await connection.flow.drain()

    def _read(self, raw: bytes, incoming: Incoming) -> RequestedFields:
        if incoming.content_encoding not in (b"", b"identity"):
            raise UnsupportedEncoding("compressed request bodies are not read; send it without content-encoding")
        body, fields = decode_body(raw, self._operation)
        options = fields.stream_options
        include_usage = options is not None and options.include_usage is True
        return RequestedFields(body, fields.model, fields.stream is True, include_usage, fields.user or "")

    async def _read_leniently(self, raw: bytes, incoming: Incoming) -> RequestedFields:
        """Model and stream of a body that may be anything; what cannot be read is simply not known.

        Raises: InvalidRequest for a model that is no name, and for a form that is in doubt; BodyTooLarge.
        """
        unread = RequestedFields(None, "", is_read=False)
        if not raw or incoming.content_encoding not in (b"", b"identity"):
            return unread
        if sum(name == b"content-type" for name, _ in incoming.forwarded) > 1:
            raise InvalidRequest("the request has two content types")
        if is_form(incoming.content_type):
            form = await read_form(raw, incoming.content_type)
            return RequestedFields(None, form.model.name if form.model is not None else "", form=form)
        if b"json" not in incoming.content_type.lower():
            return unread
        try:
            body = decode_json(raw) if len(raw) <= LONG_BYTES else await self._aside(partial(decode_json, raw))
        except InvalidRequest:
            return unread
        if not isinstance(body, dict):
            return unread
        model = body.get("model")
        if model is None:
            model = ""
        elif not isinstance(model, str) or not is_model_name(model):
            raise InvalidRequest("model must be a name of 1 to 256 printable characters", param="model")
        user = body.get("user")
        return RequestedFields(body, model, body.get("stream") is True, user=user if isinstance(user, str) else "")

    async def _aside(self, read: Callable[[], _Read]) -> _Read:
        """What is read of a long body, one at a time."""
        async with self._core.long_bodies:
            return await asyncio.to_thread(read)


def _ask_for_plain_answer(incoming: Incoming, method: str, path: str) -> None:
    """What has a model work, or tells of objects, comes whole and uncompressed, to be read; all else as clients ask."""
    tells = is_of_collection(path) and not path.endswith("/content")
    if method in _FETCHES and not tells:
        if incoming.accept_encoding:
            incoming.forwarded.append((b"accept-encoding", incoming.accept_encoding))
        return
    incoming.forwarded = [field for field in incoming.forwarded if field[0] not in _OF_A_PART]
    incoming.forwarded.append((b"accept-encoding", b"identity"))


def _drafts_by(incoming: Incoming) -> DraftsBy:
    """Whether the caller means to push draft tokens onto the answer."""
    wants = any(name == DRAFT_HEADER for name, _ in incoming.headers)
    return DraftsBy.CALLER if wants else DraftsBy.NOBODY


def _model_at(form: MultipartForm | None) -> tuple[int, int] | None:
    """Where a form names the model."""
    return (form.model.begin, form.model.end) if form is not None and form.model is not None else None


def _paths_below_root(scope: Scope) -> tuple[str, str]:
    """The path as it came, below the API root, and the same decoded. Raises: as `plain_path`."""
    path = ascii_text(scope["raw_path"], "path")
    if path.startswith("/v1/"):
        path = path[3:]
    return path, plain_path(path)
