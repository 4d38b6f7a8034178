"""One answer by rounds in a session of its target: the stream as the client gets it, and what lets it go on.

    target's first events --> marks taken out --> client
    draft: k tokens --> target: a round --> events --> client --> draft: ...

Where there is no draft, or it does not pay, the target says the rest alone. A session that is lost is opened once more,
behind the tokens that are known.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from msgspec import structs

from backends.clock import Clock
from backends.drafts.facts import SpeculationFacts
from backends.drafts.push import Draft, DraftMark, read_draft_mark
from backends.drafts.rounds import Verifier
from backends.errors import SlipstreamError, UpstreamCut
from backends.json_errors import NOT_JSON
from backends.protocol import Backend, Call, Facts, Reply
from backends.resume import MARK, BrokenAnswer, Resume
from backends.sse import EventBuffer, event_data
from backends.stream import Stream, StreamEnd
from policies.speculation.control.controller import Controller
from policies.speculation.drafter import Drafter
from policies.speculation.running_draft import RunningDraft

_logger = logging.getLogger(__name__)
_MAX_UNMARKED = 4
"""Events after which a stream without marks is taken for one that has none."""


class _Head(msgspec.Struct):
    id: str = ""
    created: int = 0
    system_fingerprint: str | None = None


_read_head = msgspec.json.Decoder(_Head).decode


class SessionAnswer:
    """The source of an answer's stream. `most` tokens are proposed in a round. `inner` is asked where a session has to
    be opened once more.
    """

    def __init__(
        self,
        call: Call,
        reply: Reply,
        *,
        inner: Backend,
        target: Verifier,
        drafter: Drafter,
        draft_name: str,
        controller: Controller,
        most: int,
        clock: Clock,
    ) -> None:
        self._call = call
        self._reply = reply
        self._inner = inner
        self._target = target
        self._running = RunningDraft(drafter, call, times=controller.times, clock=clock)
        self._controller = controller
        self._most = most
        self._clock = clock
        self._buffer = EventBuffer()
        self._facts = SpeculationFacts(draft_name, ended="unmarked")
        self._head: Resume | None = None
        self._mark = DraftMark()
        self._known: list[int] = []
        """Tokens since the session was opened."""
        self._num_unmarked = 0
        self._waits = False
        self._is_alone = False
        self._proposed: Sequence[int] = ()
        self._num_ahead = 0
        self._draft_s = 0.0
        self._began_at: float | None = None
        """When what the next mark tells was begun; None where nobody knows."""
        self._again: Facts | None = None
        """Of the attempt that has opened the session once more."""

    async def read(self) -> bytes:
        """What may be passed on. Raises: as the target's stream."""
        while True:
            if self._waits:
                await self._go_on()
            piece = await self._stream.read()
            if not piece:
                return self._buffer.rest()
            if shown := self._shown(piece):
                return shown

    async def aclose(self) -> None:
        """End the draft, and release the target's stream. Safe to call twice."""
        try:
            await self._running.aclose()
        finally:
            await self._reply.aclose()

    def ended(self, how: StreamEnd) -> None:
        """The answer has ended: what the draft has done is the call's to tell."""
        facts = self._call.facts
        facts.speculation = structs.replace(self._facts, speed_up=round(self._controller.gain, 2) or None)
        if self._again is not None:
            facts.adopt_attempt(self._again)

    @property
    def said_alone(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The tokens of the prompt and of the answer, where that has ended without rounds."""
        return (self._mark.prompt, self._known) if self._is_alone else None

    @property
    def is_marked(self) -> bool:
        """Whether the target has said that it goes by rounds, or has not come to speak yet."""
        return self._mark.by_rounds or not (self._mark.id or self._num_unmarked)

    @property
    def _stream(self) -> Stream:
        assert self._reply.stream is not None, "only streams come here"
        return self._reply.stream

    def _shown(self, piece: bytes) -> bytes:
        if self._num_unmarked > _MAX_UNMARKED:
            return piece
        shown = []
        for event in self._buffer.feed(piece):
            mark = read_draft_mark(event)
            if mark is not None:
                self._learn(mark)
            elif self._call.resume is not None or not event.startswith(MARK):
                self._num_unmarked += not self._mark.id
                self._note_head(event)
                shown.append(event)
        if self._num_unmarked > _MAX_UNMARKED:
            shown.append(self._buffer.rest())
        return b"".join(shown)

    def _note_head(self, event: bytes) -> None:
        data = event_data(event) if self._head is None else None
        if data is not None:
            try:
                head = _read_head(data)
            except NOT_JSON:
                return
            self._head = Resume(id=head.id, created=head.created, fingerprint=head.system_fingerprint or "")

    def _learn(self, mark: DraftMark) -> None:
        now = self._clock.now()
        if mark.id:
            self._mark = mark
            self._known = []
            self._is_alone = not mark.by_rounds
            if mark.by_rounds and self._again is None:
                self._facts = structs.replace(self._facts, ended="")
        elif mark.tokens and self._began_at is not None:
            self._count(mark.tokens, now - self._began_at, is_last=mark.is_last)
        self._known += mark.tokens
        self._running.learn(mark.tokens)
        self._proposed = ()
        # Alone, a token begins where the last one has come.
        self._began_at = now if self._is_alone else None
        self._waits = not (self._is_alone or mark.is_last)

    def _count(self, tokens: Sequence[int], seconds: float, *, is_last: bool) -> None:
        if self._is_alone:
            self._controller.note(len(tokens), seconds, was_drafted=False)
            return
        proposed = self._proposed
        accepted = next(
            (place for place, (one, other) in enumerate(zip(proposed, tokens, strict=False)) if one != other),
            min(len(proposed), len(tokens)),
        )
        facts = self._facts
        self._facts = facts.with_round(len(proposed), accepted, self._num_ahead)
        # What a draft says behind the answer's end was neither right nor wrong.
        num_judged = accepted if is_last else len(proposed)
        if num_judged and facts.rounds:
            draft_s = self._draft_s
            self._controller.told(num_judged, accepted, draft_s=draft_s, verify_s=seconds - draft_s)
        elif num_judged:
            # The first time the draft had the whole prompt to read.
            self._controller.scored(accepted, num_judged)

    async def _go_on(self) -> None:
        """A round, or the rest alone."""
        began = self._clock.now()
        num_ready = self._running.num_ready
        num_tokens = self._controller.draft_tokens(min(self._most, self._mark.room), num_ready=num_ready)
        proposed = await self._guess(num_tokens) if num_tokens else None
        self._num_ahead = min(num_ready, num_tokens)
        self._draft_s = self._clock.now() - began
        self._is_alone = proposed is None
        self._proposed = proposed or ()
        self._waits = False
        if self._is_alone:
            await self._running.aclose()
        draft = Draft(self._mark.id, len(self._known), tuple(self._proposed))
        call = self._call
        try:
            await self._target.verify(draft, tenant=call.tenant, key_id=call.key_id, alone=self._is_alone)
            # What is left of an answer begins with a trip of its own.
            self._began_at = None if self._is_alone else began
        except SlipstreamError as error:
            _logger.debug("a session was lost: %s", error)
            await self._reopen()

    async def _guess(self, num_tokens: int) -> list[int] | None:
        """What the draft proposes, perhaps nothing where it finds the answer whole; None where it fails."""
        proposed = await self._running.propose(num_tokens, self._mark.prompt, self._known)
        if proposed is None:
            self._facts = structs.replace(self._facts, ended="failed")
            self._controller.fail()
        return proposed

    async def _reopen(self) -> None:
        """The same answer from where it is, in another session. Raises: UpstreamCut where there is none."""
        self._facts = structs.replace(self._facts, ended="lost")
        if self._again is not None:
            raise UpstreamCut("the target has lost the session of this answer twice")
        self._controller.fail()
        call, resume = self._call, self._call.resume or BrokenAnswer()
        facts = self._again = call.facts.apart()
        begun = structs.replace(self._head or Resume(), tokens=(*resume.begun.tokens, *self._known))
        taker = frozenset({call.facts.backend or ""})
        await self.aclose()
        again = structs.replace(call, facts=facts, resume=BrokenAnswer(begun=begun, takers=taker))
        reply = await self._inner.send(again)
        call.facts.attempts += facts.attempts
        if reply.stream is None or reply.status != 200:
            await reply.aclose()
            raise UpstreamCut(f"the target does not go on with an answer whose session it has lost: {reply.status}")
        self._reply = reply
        self._buffer = EventBuffer()
