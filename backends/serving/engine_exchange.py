"""One call in the engine's hands: the events that have come for it, who waits for them, and until when.

Everything here happens on the event loop; the engine's thread never sees it. What a slow client has not read yet is
bounded by the call's own token limits, so the engine is never held up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from msgspec import structs

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.drafts.facts import OWN_DRAFT, SpeculationFacts
from backends.engine.errors import EngineStopped, RequestRefused
from backends.engine.request import Event, TokenUsage
from backends.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    SlipstreamError,
    StreamStalled,
    TotalTimeout,
    UpstreamCut,
    UpstreamError,
    UpstreamTimeout,
)
from backends.protocol import Call, Facts
from backends.serving.requests import Job
from backends.stream import StreamEnd


def translated(error: Exception | None) -> SlipstreamError:
    """An error of the engine that ends one call, as one of ours."""
    if isinstance(error, RequestRefused):
        is_length = error.code == ContextLengthExceeded.code
        return (ContextLengthExceeded if is_length else InvalidRequest)(str(error), param=error.param)
    if isinstance(error, EngineStopped):
        return UpstreamCut(f"the engine stopped in the middle of this answer: {error}")
    return UpstreamError(f"the engine failed on this request: {error}")


class EngineExchange:
    """The source of one call's stream, or of its whole body."""

    def __init__(self, call: Call, job: Job, clock: Clock, on_over: Callable[[EngineExchange], None]) -> None:
        self.deadline = call.deadline
        self.facts = call.facts
        self.requests = [request.id for request in job.requests]
        self.unfinished = set(self.requests)
        self.num_answers = sum(request.best_of or request.n for request in job.requests)
        self._num_emitted = sum(len(request.emitted) for request in job.requests)
        self.is_stream = call.stream and call.operation.traits.writes_text
        self.drafted = job.drafted
        self.caller = call.tenant, call.key_id
        self.is_closed = False
        self.error: SlipstreamError | None = None
        self._answer = job.answer
        self._call = call
        self._clock = clock
        self._on_over = on_over
        self._has_begun = False
        self._waiter: asyncio.Future[None] | None = None
        self._limit_at = math.inf
        self._late: type[UpstreamTimeout] = TotalTimeout
        self._is_whole = False
        self._used: list[TokenUsage] = []

    def take(self, event: Event) -> None:
        """Note one event of a step. Call `wake` once all of the step are noted."""
        if self.error is not None:
            return
        if event.finish_reason in ("error", "abort"):
            self.fail(translated(event.error or EngineStopped("the request was aborted")))
            return
        if not self._has_begun and not event.is_replayed:
            self._has_begun = True
            self.facts.first_token_at = self._clock.now()
        self._answer.take(event)
        if event.is_last:
            if event.usage is not None:
                self._used.append(event.usage)
            self.unfinished.discard(event.request_id)

    def wake(self) -> None:
        """Let the reader go on, if there is something for it."""
        if self._waiter is not None and not self._waiter.done() and (self.is_stream or not self.unfinished):
            self._waiter.set_result(None)

    def fail(self, error: SlipstreamError) -> None:
        """End it with an error, which the reader meets once it has read what came before."""
        if self.error is None and not self._is_whole:
            self.error = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
            self._on_over(self)

    def expire(self, now: float) -> None:
        """Enforce the limits that have passed by `now`."""
        if not self.unfinished:
            return
        if self._waiter is not None and self._limit_at <= now and self._limit_at <= self.deadline:
            self.fail(self._late("the engine said nothing within the time limit"))
        elif self.deadline <= now:
            self.fail(TotalTimeout("the engine's answer was not whole within the time limit"))

    async def next(self, limit_s: float, late: type[UpstreamTimeout]) -> bytes:
        """The next events of a stream, b"" behind its end. Waits `limit_s` at most.

        Raises: `late`, TotalTimeout, UpstreamCut, UpstreamError.
        """
        while True:
            if self._is_whole:
                return b""
            if not self.unfinished:
                return self._finish()
            piece = self._answer.drain()
            if piece:
                return piece
            await self._wait(limit_s, late)

    async def whole(self) -> bytes:
        """The whole body. Raises: TotalTimeout, UpstreamCut, UpstreamError, InvalidRequest."""
        while self.unfinished:
            await self._wait(math.inf, TotalTimeout)
        return self._finish()

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        return self._answer.usage()

    def own_usage(self) -> Usage:
        """The same without the tokens of an answer that were chosen elsewhere."""
        usage = self._answer.usage()
        return structs.replace(usage, completion_tokens=usage.completion_tokens - self._num_emitted)

    def speculation(self) -> SpeculationFacts | None:
        """What the engine's own drafts have come to; None where nothing was drafted."""
        accepted = sum(used.draft_accepted + used.prediction_accepted for used in self._used)
        rejected = sum(used.draft_rejected + used.prediction_rejected for used in self._used)
        return SpeculationFacts(OWN_DRAFT, accepted + rejected, accepted) if accepted or rejected else None

    async def read(self) -> bytes:
        """As the source of a stream."""
        return await self.next(self._call.timeouts.stream_idle_s, StreamStalled)

    async def aclose(self) -> None:
        """Stop the work that is left."""
        self.is_closed = True
        self.fail(UpstreamCut("the stream is closed"))

    async def _wait(self, limit_s: float, late: type[UpstreamTimeout]) -> None:
        if self.error is not None:
            raise self.error
        self._late = late
        self._limit_at = self._clock.now() + limit_s
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self.error is not None and not self.is_stream:
            raise self.error

    def _finish(self) -> bytes:
        self._is_whole = True
        body = self._answer.finish()
        self._on_over(self)
        return body


class EngineFactsTap:
    """Writes down how a stream ended, and its usage where it came whole."""

    def __init__(self, facts: Facts, exchange: EngineExchange) -> None:
        self._facts = facts
        self._exchange = exchange

    def feed(self, piece: bytes) -> None:
        """Nothing to learn from the words."""

    def end(self, how: StreamEnd) -> None:
        """The stream has ended."""
        self._facts.stream_end = how
        self._facts.speculation = self._exchange.speculation()
        if how is StreamEnd.CLEAN:
            self._facts.usage = self._exchange.usage()
