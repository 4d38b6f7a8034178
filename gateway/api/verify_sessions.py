"""Answers that go by rounds, for as long as somebody lets them go on: each is a call of its own, with its one row.

A session is opened, asked and closed by requests of one key to one process. It ends by itself where no round comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple

import msgspec

from backends.drafts.push import DRAFT_MARK, Draft, DraftMark, DraftsBy, read_draft_mark
from backends.drafts.rounds import OpenSession, Round, Verifier
from backends.errors import (
    ClientGone,
    InvalidRequest,
    LimitReached,
    SlipstreamError,
    UnknownObject,
    UnknownPath,
    UpstreamGarbage,
)
from backends.operations import BY_PATH
from backends.protocol import Call, Reply
from backends.sse import EventBuffer
from backends.stream import Stream
from gateway.core import Core
from gateway.door import Visit
from gateway.http.auth import Principal
from gateway.http.decode import decode_body
from gateway.http.relay import JSON_HEADER
from gateway.limits.asked import asked_of
from gateway.record.exchange import Exchange
from gateway.routing import check_operation, stack_for
from policies.background import Background

_MAX_SESSIONS = 256
_MAX_PER_KEY = 16
_LOOK_EVERY_S = 0.25
_MAX_PIECE_BYTES = 1024**2
_MAX_ENDED = 256
"""Answers that are over whose last round is known, in case its reply was lost."""


class Verdict(NamedTuple):
    """What a round brought: events of the answer, with their mark."""

    session: str
    events: bytes


class WrongPosition(InvalidRequest):
    """A round for another place in the answer than where it is; `at` is the right one."""

    status = 409
    code = "wrong_position"

    def __init__(self, at: int) -> None:
        super().__init__(f"the session has told {at} tokens; a round begins at {at}", param="at")
        self.at = at


class _Session:
    """One answer. `at`: tokens that it has told."""

    def __init__(self, reply: Reply, target: Verifier, visit: Visit, exchange: Exchange, ttl_s: float) -> None:
        assert reply.stream is not None, "only streams become sessions"
        self.id = ""
        self.at = 0
        self.target = target
        self.exchange = exchange
        self.caller = exchange.principal.tenant, exchange.principal.key
        self.ttl_s = ttl_s
        self.expires_at = 0.0
        self.is_busy = True
        self.is_over = False
        self.last: tuple[Round, bytes] | None = None
        self.stream: Stream = reply.stream
        self._reply = reply
        self._visit = visit
        self._buffer = EventBuffer()

    async def piece(self) -> bytes:
        """The events up to the next mark, or to the end behind the last one. Raises: as the stream."""
        events = b""
        while len(events) < _MAX_PIECE_BYTES:
            found = await self.stream.read()
            if not found:
                self.is_over = True
                return events + self._buffer.rest()
            is_marked = False
            for event in self._buffer.feed(found):
                events += event
                if event.startswith(DRAFT_MARK) and (mark := read_draft_mark(event)) is not None:
                    self._learn(mark)
                    is_marked = is_marked or not mark.is_last
            if is_marked:
                return events
        raise UpstreamGarbage("the answer goes on without saying where it is")

    async def close(self, error: SlipstreamError | None = None) -> None:
        """Give the answer up where it is not over, and record the call."""
        self.is_over = True
        if error is not None:
            self.exchange.error_code, self.exchange.fault = error.reason, error.fault
        try:
            await self._reply.aclose()
        finally:
            self._visit.over()

    def _learn(self, mark: DraftMark) -> None:
        if mark.id and mark.by_rounds:
            self.id = mark.id
        self.at += len(mark.tokens)


class VerifySessions:
    """Those of one process."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sessions: dict[str, _Session] = {}
        self._ended: dict[str, _Session] = {}
        self._per_key: Counter[tuple[str, str]] = Counter()
        self._closing = Background(_MAX_SESSIONS)
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, asked: OpenSession, opener: Exchange) -> Verdict | Reply:
        """A new session, and its first events; or the error with which the stack has answered. `opener`: of the request
        that asks for it, whose caller and names are those of the session's call.

        Raises: as a call, and LimitReached.
        """
        principal = opener.principal
        caller = principal.tenant, principal.key
        if len(self._sessions) >= _MAX_SESSIONS or self._per_key[caller] >= _MAX_PER_KEY:
            raise LimitReached("too many sessions are open; close one, or let its time run out", retry_after_s=1.0)
        # Counted before anything is waited for.
        self._per_key[caller] += 1
        session = None
        try:
            session = await self._begin(asked, opener)
        finally:
            if not isinstance(session, _Session):
                self._uncount(caller)
        if isinstance(session, Reply):
            return session
        try:
            events = await session.piece()
            if not session.id:
                raise UnknownPath("answers of this model do not go by rounds: it is not in this process")
        except BaseException as error:
            self._uncount(caller)
            await session.close(error if isinstance(error, SlipstreamError) else ClientGone("it was given up"))
            raise
        self._sessions[session.id] = session
        await self._rest(session)
        return Verdict(session.id, events)

    async def round(self, asked: Round, principal: Principal) -> Verdict:
        """What the target says to a draft. The last round, asked once more, has the same answer.

        Raises: UnknownObject, WrongPosition; as a stream.
        """
        session = self._found(asked.session, principal)
        if session.last is not None and session.last[0] == asked:
            return Verdict(session.id, session.last[1])
        if session.is_over:
            raise UnknownObject(f'the answer of session "{session.id}" is over')
        if session.is_busy or asked.at != session.at:
            raise WrongPosition(session.at)
        session.is_busy = True
        try:
            await self._let_go_on(session, asked)
            events = await session.piece()
        except BaseException as error:
            await self._end(session, error if isinstance(error, SlipstreamError) else ClientGone("it was given up"))
            raise
        session.last = asked, events
        await self._rest(session)
        return Verdict(session.id, events)

    async def alone(self, asked: Round, principal: Principal) -> Stream:
        """All that is left, to be read to its end and then `close`d. Raises: UnknownObject, WrongPosition."""
        session = self._found(asked.session, principal)
        if session.is_busy or session.is_over or asked.at != session.at:
            raise WrongPosition(session.at)
        session.is_busy = True
        await self._let_go_on(session, asked)
        return session.stream

    async def close(self, session_id: str, principal: Principal) -> None:
        """It is not wanted any more. Raises: UnknownObject."""
        await self._end(self._found(session_id, principal))

    async def _begin(self, asked: OpenSession, opener: Exchange) -> _Session | Reply:
        core, principal, request_id = self._core, opener.principal, opener.request_id
        operation = BY_PATH.get(asked.path)
        if operation is None or not operation.traits.has_choices:
            raise InvalidRequest("path is /chat/completions or /completions", param="path")
        raw = msgspec.json.encode(asked.body)
        body, fields = decode_body(raw, operation)
        if not fields.stream:
            raise InvalidRequest("only streams go by rounds; set stream to true", param="stream")
        exchange = Exchange(operation, core.clock.now())
        exchange.request_id, exchange.principal, exchange.stream = request_id, principal, True
        exchange.model, exchange.user = fields.model, fields.user or ""
        exchange.session, exchange.agent = opener.session, opener.agent
        visit = Visit(core, exchange, [JSON_HEADER])
        try:
            runtime = visit.runtime
            stack = stack_for(runtime, principal, model=fields.model, path=asked.path, headers=[])
            check_operation(stack, operation, asked.path)
            exchange.route, exchange.asked_prices = stack.policy.name, stack.asked_prices
            if fields.model in runtime.model_labels:
                exchange.model_label = fields.model
            if runtime.rules.all or principal.rules:
                request = asked_of(operation, body, raw)
                stack = await core.reserving.let_in(request, stack, exchange, runtime)
                exchange.route = stack.policy.name
            target = next((leaf for leaf in stack.leaves if isinstance(leaf, Verifier)), None)
            if target is None:
                raise UnknownPath("answers of this model do not go by rounds: it is not in this process")
            call = Call(
                operation=operation,
                path=asked.path,
                raw=raw,
                body=body,
                model=fields.model,
                stream=True,
                include_usage=fields.stream_options is not None and fields.stream_options.include_usage is True,
                user=exchange.user,
                tenant=principal.tenant,
                key_id=principal.key,
                route=exchange.route,
                request_id=request_id,
                headers=visit.headers,
                deadline=exchange.started_at + stack.timeouts.total_s,
                timeouts=stack.timeouts,
                slo=stack.slo,
                priority=principal.priority,
                facts=exchange.facts,
                answers=core.answers,
                drafts=DraftsBy.CALLER,
                by_rounds=True,
            )
            if core.booking is not None:
                core.booking.begins(exchange)
            reply = await stack.backend.send(call)
            exchange.status = reply.status
            if reply.stream is None:
                visit.over()
                return reply
            return _Session(reply, target, visit, exchange, asked.ttl_s)
        except BaseException as error:
            if isinstance(error, Exception):
                exchange.status = visit.failed(error).status
            visit.over()
            raise

    async def _let_go_on(self, session: _Session, asked: Round) -> None:
        tenant, key_id = session.caller
        draft = Draft(session.id, asked.at, asked.draft)
        await session.target.verify(draft, tenant=tenant, key_id=key_id, alone=asked.alone)

    async def _rest(self, session: _Session) -> None:
        """A round is over, and perhaps the answer."""
        if session.is_over:
            await self._end(session)
            self._ended[session.id] = session
            if len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]
            return
        session.is_busy = False
        session.expires_at = self._core.clock.now() + session.ttl_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now, is_draining = self._core.clock.now(), self._core.is_draining
        for session in list(self._sessions.values()):
            if not session.is_busy and (session.expires_at <= now or is_draining):
                session.is_busy = True
                self._closing.start(self._end(session))
        if self._sessions:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._sweep)

    async def _end(self, session: _Session, error: SlipstreamError | None = None) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        self._uncount(session.caller)
        await session.close(error)

    def _uncount(self, caller: tuple[str, str]) -> None:
        self._per_key[caller] -= 1
        if not self._per_key[caller]:
            del self._per_key[caller]

    def _found(self, session_id: str, principal: Principal) -> _Session:
        session = self._sessions.get(session_id) or self._ended.get(session_id)
        if session is None or session.caller != (principal.tenant, principal.key):
            raise UnknownObject(f'there is no session "{session_id}", or not any more')
        return session
