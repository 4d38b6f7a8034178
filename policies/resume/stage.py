"""A stage that goes on with streams that break off in the middle: another backend of the pool takes them over.

It asks the pool for marks, reads what comes, and where that ends too soon it asks the pool again, for the rest. The
client reads a comment at the seam; nothing is resumed without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError, UpstreamCut, UpstreamError
from backends.protocol import Backend, Call, Facts, Reply
from backends.resume import RESUME_FIELD, BrokenAnswer, Continues, Resumed, ResumeKind, ResumeOutcome
from backends.stream import Stream, StreamEnd
from policies.acting import acts
from policies.pool.attempts.retry import RetryBudget
from policies.pool.settings import ResumePolicy
from policies.resume.passed import PassedStream
from policies.resume.text import can_be_text
from policies.single_stream import asks_for_one_answer, has_readable_events
from policies.stage import Stage

_KINDS: dict[ResumeKind, tuple[Continues, ...]] = {"exact": ("tokens",), "best_effort": ("tokens", "text")}
_KIND_OF: dict[Continues, ResumeKind] = {"tokens": "exact", "text": "best_effort"}


class Resuming(Stage):
    """Around a route's pool. `continues`: what the pool's backends can go on behind, by their names. The first time
    that an answer is taken over is the load of who has gone; all further ones are paid from `budget`, so that an outage
    does not multiply its own load.
    """

    def __init__(
        self,
        inner: Backend,
        policy: ResumePolicy,
        continues: Mapping[str, frozenset[Continues]],
        clock: Clock,
        budget: RetryBudget,
    ) -> None:
        super().__init__(inner)
        self.policy = policy
        self.clock = clock
        self.budget = budget
        self._takers = {
            kind: frozenset(name for name, able in continues.items() if kind in able) for kind in _KINDS[policy.mode]
        }

    async def send(self, call: Call) -> Reply:
        """Answer through the pool; a stream of a single answer goes on where it breaks off. Raises: as the pool."""
        if not (call.stream and call.operation.traits.has_choices and _is_single(call)):
            return await self._inner.send(call)
        self.budget.add_call()
        call = msgspec.structs.replace(call, resume=BrokenAnswer())
        reply = await self._inner.send(call)
        if not has_readable_events(reply):
            return reply
        takers = {kind: names for kind, names in self._takers.items() if kind == "tokens" or can_be_text(call)}
        source = _Source(self, call, reply, takers)
        stream = Stream(source, is_over=source.is_over)
        stream.on_end.append(source.ended)
        return Reply(reply.status, reply.headers, stream=stream)

    async def ask(self, call: Call) -> Reply:
        """The pool's answer to a call that goes on. Raises: as the pool; UpstreamCut where it is no stream."""
        reply = await self._inner.send(call)
        if has_readable_events(reply):
            return reply
        await reply.aclose()
        raise UpstreamCut(f"the upstream did not go on with the answer, and said {reply.status}")


def _is_single(call: Call) -> bool:
    """Whether one answer is asked for and nothing besides, and by nobody who goes on with it themselves."""
    return asks_for_one_answer(call) and RESUME_FIELD not in (call.body or {}) and not call.pinned and not acts(call)


class _Source:
    """The streams of one answer after each other, as one."""

    def __init__(self, stage: Resuming, call: Call, reply: Reply, takers: Mapping[Continues, frozenset[str]]) -> None:
        self._stage = stage
        self._call = call
        self._reply = reply
        self._takers = takers
        self._passed = PassedStream(call.operation, tells_text=bool(takers.get("text")))
        self._attempts_left = stage.policy.attempts
        # What is learned of whoever goes on is kept apart: the first one's is not all of it.
        self._facts = call.facts
        self._error: SlipstreamError | None = None
        self._is_over = False

    async def read(self) -> bytes:
        """What may be passed on. Raises: as the stream that could not be gone on with."""
        while self._error is None and not self._is_over:
            try:
                piece = await _stream(self._reply).read()
                shown = self._passed.feed(piece)
                if not piece:
                    self._is_over = True
                    return self._passed.rest()
                if self._passed.failure is not None:
                    await _stream(self._reply).aclose(StreamEnd.ERROR)
                    raise self._passed.failure
                if shown:
                    return shown
            except UpstreamError as error:
                went_on = await self._go_on()
                if went_on:
                    return went_on
                self._error = error
                if rest := self._passed.rest():
                    conceal = self._facts.conceal
                    return rest if conceal is None else conceal(rest)
        if self._error is None:
            return b""
        final, self._error, self._is_over = self._error, None, True
        try:
            raise final
        finally:
            # Its traceback holds this frame.
            del final

    def is_over(self) -> bool:
        """Whether the whole answer has been passed on."""
        return self._error is None and self._passed.failure is None and _stream(self._reply).is_over

    async def aclose(self) -> None:
        """Release the stream that is being read."""
        await self._reply.aclose()

    def ended(self, how: StreamEnd) -> None:
        """The whole answer has ended: what is known of it belongs to the call."""
        facts = self._call.facts
        facts.stream_end = how
        if self._facts is not facts:
            facts.usage = self._facts.usage
            facts.upstream_model = self._facts.upstream_model
            facts.upstream_request_id = self._facts.upstream_request_id

    async def _go_on(self) -> bytes:
        """The first that the client gets from whoever takes over, with a word before it; b"" where nobody does."""
        broke_at = self._facts.backend or ""
        passed, has_asked = self._passed, False
        tokens, pieces = passed.num_tokens, passed.num_pieces
        for kind in self._takers:
            failed = {broke_at}
            while (broken := passed.broken(kind, self._left(kind, failed))) is not None and broken.takers:
                if not self._may_ask():
                    break
                self._attempts_left -= 1
                has_asked = True
                facts = self._call.facts.apart()
                begun = await self._ask(kind, broken, facts)
                self._call.facts.attempts += facts.attempts
                if begun:
                    self._facts = facts
                    self._call.facts.backend = facts.backend
                    self._note(broke_at, _KIND_OF[kind], tokens, pieces, to=facts.backend)
                    told = f"tokens={tokens}" if kind == "tokens" else f"characters={len(broken.text)}"
                    seam = f": slipstream resumed {_KIND_OF[kind]} backend={facts.backend} {told}\n\n"
                    return seam.encode("utf-8") + begun
                if facts.backend is None:
                    break
                failed.add(facts.backend)
        self._note(broke_at, self._stage.policy.mode, tokens, pieces, has_asked=has_asked)
        return b""

    def _may_ask(self) -> bool:
        """Whether time, attempts and budget are left for somebody to be asked."""
        stage = self._stage
        if not self._attempts_left or stage.clock.now() >= self._call.deadline:
            return False
        return self._attempts_left == stage.policy.attempts or stage.budget.spend_nowait()

    def _left(self, kind: Continues, failed: set[str]) -> frozenset[str]:
        """Who could take over: somebody else, or the same again where only that one ever could."""
        takers = self._takers[kind]
        return takers if takers == failed and len(takers) == 1 else takers - failed

    async def _ask(self, kind: Continues, broken: BrokenAnswer, facts: Facts) -> bytes:
        """What the pool makes of a call that goes on: the first to be passed on, with its stream in place; or b""."""
        await self._reply.aclose()
        try:
            self._reply = reply = await self._stage.ask(msgspec.structs.replace(self._call, facts=facts, resume=broken))
            self._passed.follow(kind)
            while piece := await _stream(reply).read():
                shown = self._passed.feed(piece)
                if self._passed.failure is not None:
                    await _stream(reply).aclose(StreamEnd.ERROR)
                    return b""
                if shown:
                    return shown
        except SlipstreamError:
            await self._reply.aclose()
            return b""
        self._is_over = True
        return self._passed.rest()

    def _note(
        self,
        backend: str,
        kind: ResumeKind,
        tokens: int,
        pieces: int,
        *,
        to: str | None = None,
        has_asked: bool = True,
    ) -> None:
        facts = self._call.facts
        if facts.resumed is None:
            facts.resumed = []
        outcome: ResumeOutcome = "resumed" if to is not None else "failed" if has_asked else "not_possible"
        facts.resumed.append(
            Resumed(backend=backend, kind=kind, outcome=outcome, to=to, tokens=tokens, pieces=0 if tokens else pieces)
        )


def _stream(reply: Reply) -> Stream:
    assert reply.stream is not None, "only streams come here"
    return reply.stream
