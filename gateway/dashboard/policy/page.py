"""What the page of the policy asks for; only operators do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backends.errors import InvalidRequest
from gateway.core import Core
from gateway.dashboard import access
from gateway.dashboard.inquiry import Inquiry
from gateway.dashboard.policy.job import PastCall, PolicyJob
from gateway.dashboard.policy.workshop import BUSY, READ_S, TRY_S, Workshop
from gateway.dashboard.queries.past_calls import past_calls
from gateway.http.connection import connection_of
from gateway.http.decode import decode_json
from gateway.http.incoming import Incoming, read_body
from gateway.revisions import Revision, Revisions
from gateway.settings import environment
from policies.policy_file.sources import MAX_KEPT_BYTES

_SPANS_S = {"1h": 3600.0, "24h": 86400.0}
_MAX_BODY_BYTES = 2 * MAX_KEPT_BYTES
_LOADS = [1.0, 2.0, 5.0, 20.0, 100.0]
"""Times the traffic that was."""


class PolicyPage:
    """Of one gateway."""

    def __init__(self, core: Core, revisions: Revisions) -> None:
        self._core = core
        self._revisions = revisions
        self._workshop = Workshop()
        self._shown: tuple[Revision, dict[str, object]] | None = None
        """The policy that was looked at last, as it was shown: to read one takes a second."""

    async def show(self, inquiry: Inquiry) -> object:
        """The policy in force, written and with its defaults, what the last change was, and what was refused since."""
        access.check_admin(inquiry.visitor)
        now, before, refused = self._revisions.in_force, self._revisions.before, self._revisions.refused
        return {
            "revision": now.name,
            "since": now.at_s,
            "before": None if before is None else {"revision": before.name, "since": before.at_s},
            "refused": None if refused is None else {"at": refused.at_s, "errors": refused.message.splitlines()},
            "texts": None if now.texts is None else await self._texts(now, before),
        }

    async def _texts(self, now: Revision, before: Revision | None) -> dict[str, object]:
        if self._shown is None or self._shown[0] is not now:
            old = None if before is None or before.texts is None else _text_of(before.texts)
            job = PolicyJob(_text_of(now.texts or {}), old, list(environment()))
            said = await self._workshop.whole(job, READ_S)
            if said == BUSY:
                return said
            # Whatever came of it: what took too long once would do so again.
            self._shown = now, said
        return self._shown[1]

    async def try_on(self, inquiry: Inquiry) -> Response:
        """What another policy is: checked, compared with the one in force, and tried on the newest calls if a `span`
        is named. Told line by line, while it is found out."""
        body = await self._asked(inquiry)
        text, span = body.get("text"), body.get("span", "")
        if not isinstance(text, str) or not text.strip() or len(text.encode()) > MAX_KEPT_BYTES:
            raise InvalidRequest(f"text: a policy of at most {MAX_KEPT_BYTES // 1024} KiB", param="text")
        if not isinstance(span, str) or span not in ("", *_SPANS_S):
            raise InvalidRequest(f"span: one of {', '.join(_SPANS_S)}", param="span")
        kept = self._revisions.in_force.texts
        old = None if kept is None else _text_of(kept)
        # What it includes is what the policy in force includes: no other file of this machine is read.
        name = next(iter(old or {}), "policy.yaml")
        job = PolicyJob({**(old or {}), name: text}, old, list(environment()))
        if span:
            job = PolicyJob(job.new, job.old, job.variables, await self._calls(inquiry, span))
        return Lines(self._workshop.messages(job, TRY_S if span else READ_S))

    async def simulate(self, inquiry: Inquiry) -> Response:
        """What the policy in force would make of the newest calls if they came several times as fast, line by line."""
        span = (await self._asked(inquiry)).get("span")
        if not isinstance(span, str) or span not in _SPANS_S:
            raise InvalidRequest(f"span: one of {', '.join(_SPANS_S)}", param="span")
        texts = self._revisions.in_force.texts
        if texts is None:
            raise InvalidRequest("the policy in force is too long to be simulated from here: use `slipstream simulate`")
        job = PolicyJob(_text_of(texts), None, list(environment()), await self._calls(inquiry, span), _LOADS)
        return Lines(self._workshop.messages(job, TRY_S))

    async def _asked(self, inquiry: Inquiry) -> dict[str, object]:
        """What an operator has sent; nothing where it is no object."""
        access.check_admin(inquiry.visitor)
        incoming = Incoming(inquiry.request.scope["headers"])
        body = decode_json(await read_body(inquiry.request.receive, incoming, _MAX_BODY_BYTES, self._core.pace()))
        return body if isinstance(body, dict) else {}

    async def _calls(self, inquiry: Inquiry, span: str) -> list[PastCall]:
        since_us = int((inquiry.now_s - _SPANS_S[span]) * 1e6)
        return await inquiry.ask(lambda book: past_calls(book.transaction, since_us))


class Lines(Response):
    """Sent as they come; who leaves ends their making."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        connection, task = connection_of(scope), asyncio.current_task()
        assert task is not None, "endpoints run in a task"
        connection.answering.add(task)
        try:
            async with aclosing(self._lines) as lines:
                first = await anext(lines, b"")
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": first, "more_body": True})
                async for line in lines:
                    await send({"type": "http.response.body", "body": line, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not connection.is_gone:
                raise
            task.uncancel()
        finally:
            connection.answering.discard(task)


def _text_of(texts: Mapping[str, bytes]) -> dict[str, str]:
    return {name: text.decode(errors="replace") for name, text in texts.items()}
