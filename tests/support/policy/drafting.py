"""A target that takes drafts and a draft that guesses, without models; each does wrong what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from backends.clock import Clock, SystemClock
from backends.drafts.push import Draft, DraftMark, encode_draft_mark
from backends.engine.speculation.pushed import PushedTokens
from backends.errors import UnknownObject, UpstreamCut
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Headers, Reply, Statistics
from backends.sse import DONE_EVENT, encode_event
from backends.stream import Stream
from policies.speculation.control.controller import Controller
from policies.speculation.exact import ExactSpeculation
from policies.speculation.settings import ExactPolicy

SSE: Headers = [(b"content-type", b"text/event-stream")]
PROMPT = (7, 7)


class AlwaysOn(Controller):
    """Drafts, whether it pays or not."""

    @property
    def is_on(self) -> bool:
        """It is."""
        return True

    def draft_tokens(self, most: int, load: int = 1, *, num_ready: int = 0) -> int:
        """As many as may be."""
        return most


class _Backend:
    """What every backend has."""

    name = "target"
    capabilities = Capabilities(operations=frozenset(Operation))

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """None."""
        return Statistics()


class _Pieces:
    """A source of pieces that are made as they are read; `closed` is called once."""

    def __init__(self, pieces: Any, closed: Callable[[], None]) -> None:
        self._pieces = pieces
        self._closed: Callable[[], None] | None = closed

    async def read(self) -> bytes:
        """The next piece."""
        piece: bytes = await anext(self._pieces, b"")
        return piece

    async def aclose(self) -> None:
        """End it."""
        await self._pieces.aclose()
        if self._closed is not None:
            self._closed()
            self._closed = None


class FakeTarget(_Backend):
    """Says the tokens `answer`, a step of `step_s` each, and as many more in a step as pushed guesses are right."""

    def __init__(self, answer: Sequence[int], *, step_s: float = 0.01) -> None:
        self.answer = list(answer)
        self.step_s = step_s
        self.is_marked = True
        self.knows_rounds = True
        self.first_mark = DraftMark(id="d-1", room=64, prompt=PROMPT)
        self.cut_after: int | None = None
        self.garbage_at: int | None = None
        self.push_error: Exception | None = None
        self.num_steps = 0
        self.num_open = 0
        self.pushes: list[Draft] = []
        self.calls: list[Call] = []
        self.verified: list[tuple[Draft, bool]] = []
        self.verify_error: Exception | None = None
        self.loses_session_at: int | None = None
        self._go_on = asyncio.Event()
        self._by_rounds = False
        self._begun = self._told = 0
        self._pushed = PushedTokens(64)

    def is_writing(self, answer_id: str) -> bool:
        """Whether it is the one."""
        return answer_id == self.first_mark.id

    async def push(self, draft: Draft, *, tenant: str, key_id: str) -> None:
        """Take a draft."""
        if self.push_error is not None:
            raise self.push_error
        if not self.num_open:
            raise UnknownObject("it is over")
        self.pushes.append(draft)
        self._pushed.push(self.answer[: self._told], draft.at, draft.tokens)

    async def verify(self, draft: Draft, *, tenant: str, key_id: str, alone: bool = False) -> None:
        """Let it go on."""
        assert not self._go_on.is_set(), "one round after the other"
        if self.verify_error is not None:
            raise self.verify_error
        if self.loses_session_at is not None and self._told >= self.loses_session_at:
            self.loses_session_at = None
            raise UnknownObject("it is lost")
        self.verified.append((draft, alone))
        if alone:
            self._by_rounds = False
        else:
            assert draft.at == self._told - self._begun
            await self.push(structs.replace(draft, at=self._told), tenant=tenant, key_id=key_id)
        self._go_on.set()

    async def send(self, call: Call) -> Reply:
        """Answer with a stream, behind what the call brings of it."""
        call.facts.backend = self.name
        self.calls.append(call)
        self._begun = self._told = len(call.resume.begun.tokens) if call.resume is not None else 0
        self._pushed = PushedTokens(64)
        self._by_rounds = call.by_rounds and self.knows_rounds
        self._go_on.clear()
        self.num_open += 1
        return Reply(200, SSE, stream=Stream(_Pieces(self._steps(), self._close)))

    def _close(self) -> None:
        self.num_open -= 1

    async def _steps(self) -> Any:
        while self._told < len(self.answer):
            if self._by_rounds and self._told > self._begun:
                await self._go_on.wait()
                self._go_on.clear()
            await asyncio.sleep(self.step_s)
            self.num_steps += 1
            left, guess = self.answer[self._told :], self._pushed.behind(self.answer[: self._told])[:8]
            right = next((place for place, token in enumerate(guess) if left[place : place + 1] != [token]), len(guess))
            tokens = self.answer[self._told : self._told + right + 1]
            begins, self._told = self._told == self._begun, self._told + len(tokens)
            piece = b"".join(encode_event(b'{"choices":[{"delta":{"content":"%d "}}]}' % token) for token in tokens)
            if self.is_marked:
                mark = self.first_mark if begins else DraftMark()
                if begins and self._by_rounds:
                    mark = structs.replace(mark, by_rounds=True, prompt=(*PROMPT, *self.answer[: self._begun]))
                is_last = self._by_rounds and self._told == len(self.answer)
                piece += encode_draft_mark(structs.replace(mark, tokens=tuple(tokens), is_last=is_last))
            if self.garbage_at is not None and self._told > self.garbage_at:
                piece += b': slipstream-draft {"tokens":["x"]}\n\n'
            # Cut anywhere, as a network may.
            yield piece[:5]
            yield piece[5:]
            if self.cut_after is not None and self._told > self.cut_after:
                raise UpstreamCut("the target is gone")
        yield DONE_EVENT

    @property
    def text(self) -> bytes:
        """What a client gets of it."""
        events = (encode_event(b'{"choices":[{"delta":{"content":"%d "}}]}' % token) for token in self.answer)
        return b"".join(events) + DONE_EVENT


class FakeDraft(_Backend):
    """Says what `guess` makes of the text, a token every `step_s`. `wrap` changes the bytes of an event."""

    name = "draft"

    def __init__(self, guess: Callable[[list[int], int], list[int]], *, step_s: float = 0.001) -> None:
        self.guess = guess
        self.step_s = step_s
        self.status = 200
        self.error: Exception | None = None
        self.dies_after: int | None = None
        self.stalls_after: int | None = None
        self.wrap: Callable[[bytes], bytes] = lambda event: event
        self.num_open = 0
        self.num_asked = 0
        self.num_said = 0

    async def send(self, call: Call) -> Reply:
        """Answer with a stream of token ids."""
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        if self.status != 200:
            return Reply(self.status, [], body=b'{"error":{"message":"no"}}')
        assert call.body is not None
        self.num_open += 1
        tokens = self.guess(list(call.body["prompt"])[len(PROMPT) :], call.body["max_tokens"])
        return Reply(200, SSE, stream=Stream(_Pieces(self._say(tokens), self._close)))

    def _close(self) -> None:
        self.num_open -= 1

    async def _say(self, tokens: list[int]) -> Any:
        for number, token in enumerate(tokens):
            if number == self.dies_after:
                raise UpstreamCut("the draft is gone")
            await asyncio.sleep(3600 if number == self.stalls_after else self.step_s)
            self.num_said += 1
            yield self.wrap(encode_event(b'{"choices":[{"text":"","token_ids":[%d]}]}' % token))
        yield DONE_EVENT


def speculating(target: FakeTarget, draft: FakeDraft, clock: Clock | None = None, **settings: Any) -> ExactSpeculation:
    """The stage around both, its draft on from the first token."""
    policy = ExactPolicy(mode="exact", draft="draft", **settings)
    stage = ExactSpeculation(target, policy, draft, {"target": target}, clock or SystemClock())
    for controller in stage.controllers.values():
        controller.note(16, 16 * target.step_s, was_drafted=False)
    return stage
