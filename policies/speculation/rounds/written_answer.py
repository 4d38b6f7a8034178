"""One answer of a target that knows no drafts: it begins as its own stream, and goes on by rounds where that pays.

    NATIVE: the target's stream, token ids taken out --> ROUNDS: draft, verdict, the gateway writes --> END
    or BEGUN: a first token, asked whole                     |
                                                             +--> ALONE: a completion behind the tokens known

Where the gateway's tokenizer writes another text than the target has shown, the target's stream goes on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import structs

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.drafts.facts import SpeculationFacts
from backends.errors import SlipstreamError, UpstreamCut
from backends.json_errors import NOT_JSON
from backends.protocol import Call, Reply
from backends.sse import EventBuffer, encode_event, event_data
from backends.stream import StreamEnd
from policies.speculation.control.controller import Controller
from policies.speculation.drafter import Drafter
from policies.speculation.rounds.opening import Begun
from policies.speculation.rounds.verdicts import Malformed, Said, Verdicts
from policies.speculation.rounds.words import ChunkWriter
from policies.speculation.running_draft import RunningDraft

_logger = logging.getLogger(__name__)
_MAX_UNTOLD = 4
"""Events without token ids after which a target is taken for one that does not tell them."""


class WrittenAnswer:
    """The source of an answer's stream. `told` hears of each verdict whether it could be one. `begun`: how it begins
    where `reply` is no stream.
    """

    def __init__(
        self,
        call: Call,
        reply: Reply,
        *,
        verdicts: Verdicts,
        writer: ChunkWriter,
        drafter: Drafter,
        draft_name: str,
        controller: Controller,
        most: int,
        most_tokens: int,
        clock: Clock,
        told: Callable[[bool], None],
        begun: Begun | None = None,
    ) -> None:
        self._call = call
        self._reply = reply
        self._verdicts = verdicts
        self._writer = writer
        self._running = RunningDraft(drafter, call, times=controller.times, clock=clock)
        self._controller = controller
        self._most = most
        self._most_tokens = most_tokens
        self._clock = clock
        self._told = told
        self._begun = begun
        self._facts = SpeculationFacts(draft_name, ended="unmarked" if begun is None else "")
        self._pieces = self._written()
        self._prompt: list[int] = list(begun.prompt) if begun is not None else []
        self._known: list[int] = list(begun.tokens) if begun is not None else []
        self._text = ""
        self._num_untold = 0
        self._has_end = False
        self._is_native = True
        self._is_by_rounds = begun is not None
        self._is_plain = True
        self._began_at: float | None = None

    async def read(self) -> bytes:
        """What may be passed on. Raises: as the target's stream."""
        return await anext(self._pieces, b"")

    async def aclose(self) -> None:
        """End the draft, and release the target's stream. Safe to call twice."""
        try:
            await self._running.aclose()
            await self._pieces.aclose()
        finally:
            await self._reply.aclose()

    def ended(self, how: StreamEnd) -> None:
        """The answer has ended: what the draft has done is the call's to tell."""
        facts, told = self._call.facts, self._facts
        speed_up = round(self._controller.gain, 2) or None
        facts.speculation = structs.replace(told, speed_up=speed_up, probe_tokens=self._verdicts.num_prompt_tokens)
        if self._writer.is_over:
            facts.stream_end = how
        if self._writer.is_over or self._begun is not None:
            # What the pool has seen of an answer that was begun whole is one token.
            facts.usage, facts.is_usage_partial = self._usage(), False

    @property
    def said_alone(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The tokens of the prompt and of the answer, where that has ended without rounds."""
        return (self._prompt, self._known) if self._prompt and not self._is_by_rounds else None

    @property
    def is_marked(self) -> bool:
        """Whether the target tells its tokens, or has not come to speak yet."""
        return bool(self._known) or self._num_untold < _MAX_UNTOLD

    async def _written(self) -> AsyncGenerator[bytes, None]:
        if self._begun is not None:
            yield self._begun.shown
        else:
            async for piece in self._native():
                yield piece
            if self._is_native:
                return
        writer = self._writer
        while not writer.is_over and (
            num_tokens := self._controller.draft_tokens(self._most, num_ready=self._running.num_ready)
        ):
            verdict = await self._round(min(num_tokens, self._most_tokens - writer.num_tokens))
            if verdict is None:
                break
            if shown := writer.take(verdict.tokens, ends=verdict.ends):
                yield shown
        await self._running.aclose()
        if not writer.is_over:
            self._is_by_rounds = False
            async for shown in self._alone():
                yield shown
        yield writer.finish(self._usage())

    async def _native(self) -> AsyncIterator[bytes]:
        """The target's own stream, up to where rounds begin, or to its end."""
        stream, buffer, may_begin = self._reply.stream, EventBuffer(), True
        assert stream is not None, "only streams come here"
        while piece := await stream.read():
            shown = b""
            chunk: dict[str, Any] | None = None
            for event in buffer.feed(piece):
                told, passed = self._learn(event)
                chunk = told or chunk
                shown += passed
            if shown:
                yield shown
            if not may_begin or chunk is None or self._has_end or not (self._known and self._prompt):
                continue
            if len(self._known) >= self._most_tokens or not self._controller.draft_tokens(self._most):
                continue
            begun = self._writer.begin(chunk, self._known, self._text) if self._is_plain else None
            if begun is None:
                self._facts = structs.replace(self._facts, ended="tokenizer")
                self._told(False)
                may_begin = False
                continue
            await self._reply.aclose()
            self._is_native, self._is_by_rounds = False, True
            self._facts = structs.replace(self._facts, ended="")
            if begun:
                yield begun
            return
        if rest := buffer.rest():
            yield rest

    def _learn(self, event: bytes) -> tuple[dict[str, Any] | None, bytes]:
        """What a chunk tells, and the chunk without the tokens that the client has not asked for."""
        data = event_data(event)
        if data is None or data == b"[DONE]":
            return None, event
        try:
            chunk = msgspec.json.decode(data)
            choices = chunk["choices"]
        except (*NOT_JSON, KeyError, TypeError):
            return None, event
        if not choices:
            return None, event
        choice = choices[0]
        prompt = chunk.pop("prompt_token_ids", None) or choice.pop("prompt_token_ids", None)
        chunk.pop("prompt_text", None)
        tokens = choice.pop("token_ids", None)
        self._prompt = self._prompt or list(prompt or ())
        delta = choice.get("delta") or {}
        self._is_plain = self._is_plain and not any(delta[name] for name in delta.keys() - {"role", "content"})
        text = choice.get("text") or delta.get("content") or ""
        self._num_untold += bool(text) and not tokens
        self._has_end = self._has_end or choice.get("finish_reason") is not None
        self._text += text
        if tokens:
            self._known += tokens
            now = self._clock.now()
            if self._began_at is not None:
                self._controller.note(len(tokens), now - self._began_at, was_drafted=False)
            self._began_at = now
        return chunk, encode_event(msgspec.json.encode(chunk))

    async def _round(self, num_tokens: int) -> Said | None:
        """One round; None where draft or target have failed in it, and the target is to go on alone."""
        began, num_ready = self._clock.now(), self._running.num_ready
        draft = await self._running.propose(num_tokens, self._prompt, self._known)
        if draft is None:
            self._fail("failed", "the draft has failed")
            return None
        draft_s = self._clock.now() - began
        try:
            verdict = await self._verdicts.verify([*self._prompt, *self._known], draft)
        except Malformed as error:
            self._fail("malformed", error)
            self._told(False)
            return None
        except SlipstreamError as error:
            self._fail("failed", error)
            return None
        self._told(True)
        self._known += verdict.tokens
        self._running.learn(verdict.tokens)
        accepted = sum(1 for one, other in zip(draft, verdict.tokens, strict=False) if one == other)
        facts = self._facts
        num_judged = accepted if verdict.ends else len(draft)
        if num_judged and facts.rounds:
            verify_s = self._clock.now() - began - draft_s
            self._controller.told(num_judged, accepted, draft_s=draft_s, verify_s=verify_s)
        elif num_judged:
            self._controller.scored(accepted, num_judged)
        self._facts = facts.with_round(len(draft), accepted, min(num_ready, len(draft)))
        return verdict

    async def _alone(self) -> AsyncIterator[bytes]:
        """What is left, said by the target alone. Raises: UpstreamCut and others of a stream."""
        left = self._most_tokens - self._writer.num_tokens
        async with aclosing(self._verdicts.rest([*self._prompt, *self._known], left)) as verdicts:
            async for tokens, ends in verdicts:
                self._known += tokens
                if shown := self._writer.take(tokens, ends=ends):
                    yield shown
                if self._writer.is_over:
                    return
        if not self._writer.is_over:
            raise UpstreamCut("the target ended its answer without saying why")

    def _fail(self, why: str, error: SlipstreamError | str) -> None:
        _logger.debug("rounds of a call ended: %s", error)
        self._facts = structs.replace(self._facts, ended=why)
        self._controller.fail()

    def _usage(self) -> Usage:
        return Usage(prompt_tokens=len(self._prompt), completion_tokens=self._writer.num_tokens)
