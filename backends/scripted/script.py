"""A backend that plays a script: the built-in answer where no upstream is configured, and the fake of every test.

It behaves like an HTTP upstream, failures included, without a socket. What it says is `answers.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from backends.clock import Clock
from backends.config import Config, Duration
from backends.errors import (
    ConnectFailed,
    ConnectTimeout,
    FirstTokenTimeout,
    StreamStalled,
    TotalTimeout,
    UpstreamCut,
    UpstreamError,
    UpstreamTimeout,
    error_body,
)
from backends.header_names import NO_HEADERS
from backends.protocol import Call, Capabilities, Headers, Reply, Statistics
from backends.registry import Kind
from backends.scripted.answers import OPERATIONS, answer
from backends.scripted.facts_tap import FactsTap
from backends.stream import Stream

_OUTCOMES = (
    {"reply", "cut_after"},
    {"reply", "stall_after"},
    {"status", "message", "code", "retry_after"},
    {"unreachable"},
)


class ScriptStep(Config):
    """What happens to one call. An empty step answers at once, as a healthy upstream does."""

    reply: str | None = Field(
        default=None, description="The text of the answer; without it the answer says who speaks."
    )
    delay: Duration = Field(
        default=0.0, description="The wait before each event of a stream, or before a whole answer."
    )
    cut_after: int | None = Field(
        default=None, ge=0, description="Events of a stream before it breaks off; a whole answer breaks off too."
    )
    stall_after: int | None = Field(
        default=None, ge=0, description="Events of a stream before it goes silent for ever; a whole answer never comes."
    )
    status: int | None = Field(
        default=None, ge=400, le=599, description="Answer with this HTTP status and an error object."
    )
    message: str = Field(default="a scripted failure", description="The error's message.")
    code: str | None = Field(default=None, description="The error's code, for instance context_length_exceeded.")
    retry_after: Duration | None = Field(default=None, description="The error's Retry-After, sent in whole seconds.")
    unreachable: bool = Field(default=False, description="No connection can be made.")

    @model_validator(mode="after")
    def _is_one_outcome(self) -> Self:
        given = self.model_fields_set - {"delay"}
        if not any(given <= outcome for outcome in _OUTCOMES):
            raise ValueError(
                "a step is one of: an answer (reply, and cut_after or stall_after), "
                "an error (status, message, code, retry_after), unreachable"
            )
        if self.status is None and given & {"message", "code", "retry_after"}:
            raise ValueError("message, code and retry_after need a status")
        return self


class ScriptedConfig(Config):
    """Settings of `type: scripted`."""

    script: tuple[ScriptStep, ...] = Field(
        default=(ScriptStep(),), min_length=1, description="One step for each call, in order."
    )
    repeat: Literal["cycle", "last"] = Field(
        default="cycle", description="When the script is over: start again, or stay with its last step."
    )


class Scripted:
    """Answers each call as the next step of its script says.

    It keeps the call's limits like an HTTP backend: a stream's first event counts from the call, and is waited for
    before the reply is handed out.
    """

    def __init__(self, name: str, config: ScriptedConfig, clock: Clock) -> None:
        self._name = name
        self._capabilities = Capabilities(operations=OPERATIONS, headers=NO_HEADERS)
        self._clock = clock
        self._script = config.script
        self._does_cycle = config.repeat == "cycle"
        self._position = 0
        self._pace = _Pace(clock)
        self._counters = _Counters()

    @property
    def name(self) -> str:
        """The configured name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Chat, completions, embeddings and responses."""
        return self._capabilities

    def play(self, *steps: ScriptStep) -> None:
        """Start over with another script (none: plain answers); calls in flight keep their step."""
        self._script = steps or (ScriptStep(),)
        self._position = 0

    async def open(self) -> None:
        """There is nothing to acquire."""

    async def aclose(self) -> None:
        """End every call in flight with UpstreamCut and refuse new ones. Safe to call twice."""
        self._pace.close()

    def statistics(self) -> Statistics:
        """A snapshot of the counters; `failed` counts calls that ended in an UpstreamError."""
        counters = self._counters
        return Statistics(in_flight=counters.in_flight, sent=counters.sent, failed=counters.failed)

    async def send(self, call: Call) -> Reply:
        """Play the next step.

        Raises: UpstreamError as scripted, or where a limit of the call is reached; UnknownPath and InvalidRequest
        where there is nothing it could say.
        """
        counters = self._counters
        counters.sent += 1
        counters.in_flight += 1
        reply = None
        try:
            reply = await self._play_step(call, self._next_step())
        except UpstreamError:
            counters.failed += 1
            raise
        finally:
            if reply is None or reply.stream is None:
                counters.in_flight -= 1
        return reply

    def _next_step(self) -> ScriptStep:
        last = len(self._script) - 1
        step = self._script[min(self._position, last)]
        self._position = 0 if self._does_cycle and self._position >= last else self._position + 1
        return step

    async def _play_step(self, call: Call, step: ScriptStep) -> Reply:
        if self._pace.is_closed:
            raise ConnectFailed(f"backend {self._name} is closed")
        if step.unreachable:
            await self._pace.wait(call, step.delay, call.timeouts.connect_s, ConnectTimeout)
            raise ConnectFailed(f"backend {self._name}: the script makes it unreachable")
        call.facts.sent_at = self._clock.now()
        if step.status is not None:
            await self._pace.wait(call, step.delay, math.inf, TotalTimeout)
            return _error_reply(step, step.status)
        said = answer(call, step.reply, number=self._counters.sent, created=int(self._clock.wall()))
        if call.stream and call.operation.traits.writes_text:
            events = _Events(call, step, said.pieces, pace=self._pace, counters=self._counters)
            first = await events.first()
            call.facts.first_token_at = self._clock.now()
            stream = Stream(events, [FactsTap(call.facts, lambda: said.usage)], first=first)
            return Reply(200, [(b"content-type", b"text/event-stream; charset=utf-8")], stream=stream)
        await self._pace.wait(call, math.inf if step.stall_after is not None else step.delay, math.inf, TotalTimeout)
        if step.cut_after is not None:
            raise UpstreamCut(f"backend {self._name}: the script cuts this answer")
        call.facts.first_token_at = self._clock.now()
        call.facts.usage = said.usage
        return Reply(200, [(b"content-type", b"application/json")], body=next(said.pieces))


class _Counters:
    """What `statistics` reports; a stream shares its backend's."""

    __slots__ = ("failed", "in_flight", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.in_flight = 0


class _Pace:
    """Waiting within limits. How long each wait takes is known beforehand, so no timer races another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Task[object]] = set()
        self.is_closed = False

    def close(self) -> None:
        """End every wait with UpstreamCut, those to come too."""
        self.is_closed = True
        for task in self._waiting:
            task.cancel()
        self._waiting.clear()

    async def wait(self, call: Call, wait_s: float, limit_s: float, late: type[UpstreamTimeout]) -> None:
        """Wait `wait_s` (inf: for ever), but no longer than `limit_s` and the call's deadline.

        Raises: `late` after `limit_s`, TotalTimeout at the deadline, UpstreamCut where the backend is closed.
        """
        left_s = max(0.0, call.deadline - self._clock.now())
        allowed_s = min(limit_s, left_s)
        await self._sleep(min(wait_s, allowed_s))
        if wait_s > allowed_s or not left_s:
            error = late if limit_s <= left_s else TotalTimeout
            raise error(f"the scripted answer did not come within {allowed_s:.3g} s")

    async def _sleep(self, seconds: float) -> None:
        if self.is_closed:
            raise UpstreamCut("the backend is closed")
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._waiting.add(task)
        try:
            await self._clock.sleep(seconds)
        except asyncio.CancelledError:
            # `close` cancels whoever waits; that becomes an error, unless the task is being cancelled besides.
            if task not in self._waiting and task.uncancel() == 0:
                raise UpstreamCut("the backend was closed") from None
            raise
        finally:
            self._waiting.discard(task)


class _Events:
    """The source of one stream: one event a read."""

    def __init__(
        self, call: Call, step: ScriptStep, events: Iterator[bytes], *, pace: _Pace, counters: _Counters
    ) -> None:
        self._call = call
        self._step = step
        self._events = events
        self._pace = pace
        self._counters = counters
        self._position = 0
        self._is_released = False
        self._is_closed = False

    async def first(self) -> bytes:
        """The first event, before there is a stream; who asks counts its failure."""
        return await self._next(self._call.timeouts.first_token_s, FirstTokenTimeout)

    async def read(self) -> bytes:
        """The next event, b"" at the end."""
        if self._is_closed:
            raise UpstreamCut("the stream is closed")
        try:
            event = await self._next(self._call.timeouts.stream_idle_s, StreamStalled)
        except UpstreamError:
            self._counters.failed += 1
            self._release()
            raise
        if not event:
            self._release()
        return event

    async def aclose(self) -> None:
        """Drop the rest."""
        self._is_closed = True
        self._release()

    async def _next(self, limit_s: float, late: type[UpstreamTimeout]) -> bytes:
        event = next(self._events, b"")
        if event:
            if self._position == self._step.cut_after:
                raise UpstreamCut(f"the script cuts this stream after {self._position} events")
            is_silent = self._position == self._step.stall_after
            await self._pace.wait(self._call, math.inf if is_silent else self._step.delay, limit_s, late)
            self._position += 1
        return event

    def _release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._counters.in_flight -= 1


def _error_reply(step: ScriptStep, status: int) -> Reply:
    headers: Headers = [(b"content-type", b"application/json")]
    if step.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(step.retry_after)))
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    return Reply(status, headers, body=error_body(step.message, type=kind, code=step.code))


KIND = Kind(config=ScriptedConfig, build=Scripted)
