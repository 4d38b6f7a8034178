"""One answer with a draft beside it: its stream as the client gets it, and guesses that are posted meanwhile.

    target's stream --> marks taken out --> client
                          |  what is known          learn
                        guess <-- tokens -- draft   say
                          |  what is ahead          news
                          +--> posted to the target

The stream never waits for the draft. What goes wrong with the draft ends the draft.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import msgspec

from backends.clock import Clock
from backends.drafts.facts import SpeculationFacts
from backends.drafts.push import Draft, DraftMark, Pushable, read_draft_mark
from backends.errors import SlipstreamError, UnknownObject
from backends.protocol import Call, Reply
from backends.sse import EventBuffer
from backends.stream import Stream, StreamEnd
from policies.background import Background
from policies.speculation.control.controller import Controller
from policies.speculation.drafter import Drafter
from policies.speculation.guess import Guess

_logger = logging.getLogger(__name__)
_MAX_UNMARKED = 4
"""Events after which a stream without marks is taken for one that has none."""
_MAX_POSTS = 8
"""Posts under way for one answer; what comes meanwhile goes with the next."""
_POST_EVERY_S = 0.003


class DraftedAnswer:
    """The source of an answer's stream. `most`: tokens that the draft goes ahead. `posts` outlive the answer: to break
    one off would cost its connection.
    """

    def __init__(
        self,
        call: Call,
        reply: Reply,
        *,
        target: Pushable,
        drafter: Drafter,
        draft_name: str,
        controller: Controller,
        posts: Background,
        most: int,
        clock: Clock,
    ) -> None:
        self._call = call
        self._reply = reply
        self._target = target
        self._drafter = drafter
        self._draft_name = draft_name
        self._controller = controller
        self._posts = posts
        self._room = most
        self._clock = clock
        self._buffer: EventBuffer | None = EventBuffer()
        self._num_unmarked = 0
        self._mark = DraftMark()
        self._guess = Guess()
        self._marked_at = 0.0
        self._was_drafted = False
        self._ended = "unmarked"
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[bool] | None = None
        self._has_learned = asyncio.Event()
        self._num_posts = 0
        self._posted_at = 0.0
        self._has_pushed = False
        self._is_over = False

    async def read(self) -> bytes:
        """What may be passed on. Raises: as the target's stream."""
        while piece := await self._stream.read():
            if shown := self._shown(piece):
                return shown
        await self._stop()
        rest, self._buffer = (self._buffer.rest() if self._buffer is not None else b""), None
        return rest

    async def aclose(self) -> None:
        """End the draft, and release the target's stream. Safe to call twice."""
        try:
            await self._stop()
        finally:
            await self._reply.aclose()

    def ended(self, how: StreamEnd) -> None:
        """The answer has ended: what the draft has done is the call's to tell."""
        facts, guess = self._call.facts, self._guess
        facts.speculation = SpeculationFacts(
            self._draft_name,
            guess.num_drafted,
            guess.num_accepted,
            ended=self._ended,
            speed_up=round(self._controller.gain, 2) or None,
        )

    @property
    def is_marked(self) -> bool:
        """Whether the target has said that it takes drafts, or has not come to speak yet."""
        return bool(self._mark.id) or self._num_unmarked <= _MAX_UNMARKED

    @property
    def _stream(self) -> Stream:
        assert self._reply.stream is not None, "only streams come here"
        return self._reply.stream

    def _shown(self, piece: bytes) -> bytes:
        if self._buffer is None:
            return piece
        shown = []
        for event in self._buffer.feed(piece):
            mark = self._read_mark(event)
            if mark is not None:
                self._learn(mark)
                continue
            shown.append(event)
            self._num_unmarked += not self._mark.id
        if self._num_unmarked > _MAX_UNMARKED:
            shown.append(self._buffer.rest())
            self._buffer = None
        return b"".join(shown)

    def _read_mark(self, event: bytes) -> DraftMark | None:
        try:
            return read_draft_mark(event)
        except msgspec.DecodeError:
            # Nobody else's comment begins so: it is left out, and the answer goes on alone.
            self._fail("garbage")
            return DraftMark()

    def _learn(self, mark: DraftMark) -> None:
        now, controller = self._clock.now(), self._controller
        if not self._mark.id:
            if not mark.id:
                return
            self._mark, self._ended = mark, ""
            self._room = min(self._room, mark.room)
            self._task = asyncio.get_running_loop().create_task(self._draft())
        elif mark.tokens:
            controller.note(len(mark.tokens), now - self._marked_at, was_drafted=self._was_drafted)
        self._guess.learn(mark.tokens)
        listening = self._listening
        if self._guess.is_wrong and listening is not None:
            # The next guess begins now, not when the draft has said one more token of the wrong one; broken off once.
            self._listening = None
            listening.cancel()
        self._marked_at = now
        self._was_drafted = controller.is_on and not self._ended
        self._has_learned.set()
        self._post()

    async def _draft(self) -> None:
        """Guesses until the answer is over. Never raises but for cancellation."""
        try:
            await self._keep_guessing()
        except SlipstreamError as error:
            _logger.debug("the draft of a call ended: %s", error)
            self._fail("failed")
        except Exception:  # a named border: a draft is a help, so its failure fails nobody
            _logger.exception("the draft of a call failed")
            self._fail("failed")

    async def _keep_guessing(self) -> None:
        guess, room, task = self._guess, self._room, asyncio.current_task()
        says_end = False
        while room:
            self._has_learned.clear()
            num_ahead = len(guess.ahead)
            says_end = says_end and not (guess.is_wrong or guess.lag)
            if says_end or not self._controller.is_on or 2 * num_ahead > room:
                await self._has_learned.wait()
                continue
            text, left = [*self._mark.prompt, *guess.begin()], room - num_ahead
            listening = asyncio.get_running_loop().create_task(self._listen(text, left))
            self._listening = listening
            try:
                says_end = await listening
            except asyncio.CancelledError:
                if task is None or task.cancelling():
                    raise
                says_end = False
            finally:
                self._listening = None
            self._post()

    async def _listen(self, text: Sequence[int], left: int) -> bool:
        """Takes what the draft says; whether it finds the answer whole, where it stops by itself."""
        guess = self._guess
        async with contextlib.aclosing(self._drafter.tokens(self._call, text, left)) as said:
            async for tokens in said:
                guess.say(tokens[:left])
                left -= len(tokens)
                self._post(every_s=_POST_EVERY_S)
                if left <= 0 or guess.is_wrong or not self._controller.is_on:
                    return False
        return True

    def _post(self, *, every_s: float = 0.0) -> None:
        """Posts what is new, unless so much is under way, or so little time has passed, that it is to wait."""
        now = self._clock.now()
        if self._num_posts >= _MAX_POSTS or now < self._posted_at + every_s or self._ended:
            return
        news = self._guess.news()
        if news is not None:
            self._posted_at = now
            self._num_posts += 1
            if not self._posts.start(self._push(*news)):
                self._num_posts -= 1

    async def _push(self, at: int, tokens: list[int]) -> None:
        call = self._call
        try:
            draft = Draft(self._mark.id, at, tuple(tokens))
            await self._target.push(draft, tenant=call.tenant, key_id=call.key_id)
            self._has_pushed = True
        except UnknownObject:
            # Over by now, or never known where posts come out.
            self._fail("gone", is_fault=not self._has_pushed)
        except SlipstreamError:
            self._fail("failed")
        finally:
            self._num_posts -= 1
        self._post()

    def _fail(self, why: str, *, is_fault: bool = True) -> None:
        """There will be no more drafts for this answer, and for others not soon where it is the draft's `is_fault`."""
        if self._ended or self._is_over:
            return
        self._ended = why
        if is_fault:
            self._controller.fail()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _stop(self) -> None:
        self._is_over = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
