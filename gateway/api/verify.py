"""POST /slipstream/verify: answers that wait for their drafter after each step. See `backends/drafts/rounds.py`."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.types import Receive, Scope, Send

from backends.drafts.rounds import AT_HEADER, SESSION_HEADER, OpenSession, Round
from backends.errors import Forbidden, InvalidRequest
from backends.protocol import Headers, Reply
from gateway.api.verify_sessions import Verdict, VerifySessions, WrongPosition
from gateway.core import Core
from gateway.door import own_headers
from gateway.http.agent import agent_family
from gateway.http.connection import connection_of
from gateway.http.incoming import Incoming, read_body
from gateway.http.relay import send_error, send_stream
from gateway.record.exchange import Exchange

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class _Which(msgspec.Struct):
    session: object = None


_read_which = msgspec.json.Decoder(_Which).decode
_read_round = msgspec.json.Decoder(Round).decode
_read_opening = msgspec.json.Decoder(OpenSession).decode


class VerifyApi:
    """One path. Called within the door, by whoever has looked at the method."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sessions = VerifySessions(core)

    async def answer(self, scope: Scope, receive: Receive, send: Send, incoming: Incoming, exchange: Exchange) -> None:
        """Answer one request. Raises: Forbidden, InvalidRequest, and what the session raises."""
        principal, sessions = exchange.principal, self._sessions
        if not principal.drafts:
            raise Forbidden("this key may not verify drafts; one of the policy file with `drafts: true` may")
        raw = await read_body(receive, incoming, self._core.settings.max_body, self._core.pace())
        try:
            asked = _read_opening(raw) if _read_which(raw).session is None else _read_round(raw)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body neither opens a session nor is a round of one: {error}") from None
        connection = connection_of(scope)
        headers = own_headers(self._core, exchange, incoming)
        try:
            if isinstance(asked, OpenSession):
                exchange.session, exchange.agent = incoming.session(), agent_family(incoming.user_agent)
                told: Verdict | Reply = await sessions.open(asked, exchange)
            elif asked.close:
                await sessions.close(asked.session, principal)
                exchange.status = 204
                await connection.answer(204, headers, b"")
                return
            elif asked.alone:
                await self._relay(asked, scope, send, headers, exchange)
                return
            else:
                told = await sessions.round(asked, principal)
        except WrongPosition as error:
            exchange.status = error.status
            await send_error(connection, error, [*headers, (AT_HEADER, b"%d" % error.at)])
            return
        if isinstance(told, Reply):
            exchange.status = told.status
            await connection.answer(told.status, [*headers, *told.headers], told.body or b"")
            return
        exchange.status = 200
        session = (SESSION_HEADER, told.session.encode("ascii"))
        await connection.answer(200, [*headers, _EVENTS, session], told.events)

    async def _relay(self, asked: Round, scope: Scope, send: Send, headers: Headers, exchange: Exchange) -> None:
        """What is left of an answer, as it comes; whoever leaves it ends it."""
        connection, task = connection_of(scope), asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        stream = await self._sessions.alone(asked, exchange.principal)
        connection.answering.add(task)
        try:
            exchange.status = 200
            rest = Reply(200, [_EVENTS], stream=stream)
            await send_stream(send, connection, rest, [*headers, _EVENTS], hides_usage=False, facts=exchange.facts)
        finally:
            connection.answering.discard(task)
            await asyncio.shield(self._sessions.close(asked.session, exchange.principal))
