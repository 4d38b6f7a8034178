"""The engine as a backend: calls become its requests, and what its thread says comes back once a step.

The engine's own thread and the event loop meet in two places only: `submit` and `abort`, which the engine takes at any
time, and `_deliver`, which hands a step's events to the loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from backends.clock import Clock
from backends.drafts.push import MAX_KEPT, Draft
from backends.engine.errors import EngineStopped, RequestRefused
from backends.engine.request import Event, Request
from backends.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    InvalidRequest,
    UnknownObject,
    UnknownPath,
    UpstreamCut,
    UpstreamError,
    error_body,
)
from backends.header_names import NO_HEADERS
from backends.model_server import AnswerTimes, ModelStatistics
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Facts, Reply, Statistics
from backends.resume import Continues
from backends.serving.engine_exchange import EngineExchange, EngineFactsTap, translated
from backends.serving.meter import Meter
from backends.serving.replies.parts import Head
from backends.serving.requests import Job, Model, plan
from backends.serving.score import score_job
from backends.stream import Stream

if TYPE_CHECKING:
    from backends.engine.statistics import EngineStatistics

_ID_PREFIX = {
    Operation.CHAT: "chatcmpl-",
    Operation.COMPLETION: "cmpl-",
    Operation.EMBEDDING: "embd-",
    Operation.RESPONSES: "resp_",
}
_OPERATIONS = frozenset(_ID_PREFIX)
_CONTINUES = frozenset[Continues]({"tokens"})
_TICK_S = 0.02
"""How often time limits are looked at while calls are in flight."""
_NUM_PREPARERS = 4
"""Two may wait for grammars that are tried."""
_SCORE_LIMIT_S = 60.0
_RETRY_AFTER = (b"retry-after", b"1")
_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class EngineHandle(Protocol):
    """What serving needs of `backends.engine.engine.Engine`; all of it may be called from any thread."""

    def submit(self, request: Request, sink: Callable[[list[Event]], None]) -> None:
        """Take a request; `sink` gets its events once a step. Raises: RequestRefused, EngineStopped."""

    def abort(self, request_id: str) -> None:
        """Give up a request; nothing happens where it is over."""

    def push(self, request_id: str, start: int, tokens: Sequence[int], most_kept: int) -> None:
        """Hand over a guess of a request's tokens from `start` on; nothing happens where it is over."""

    def go_on(self, request_id: str, *, freely: bool) -> None:
        """Let a request that goes by rounds make a step, or `freely` all of them; nothing happens where it is over."""

    def close(self) -> None:
        """Stop, and wait for the thread."""

    def statistics(self) -> EngineStatistics:
        """A snapshot."""


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine that runs, and what is known of its model. `fingerprint` names weights and settings."""

    engine: EngineHandle
    model: Model
    fingerprint: str


class EngineBackend:
    """Answers calls with a model in this process. `start` loads it, in a worker thread of `open`.

    Calls are turned away while `max_requests` answers or more are in hand.
    """

    def __init__(
        self, name: str, clock: Clock, start: Callable[[], StartedEngine], *, meter: Meter, max_requests: int
    ) -> None:
        self._name = name
        self._clock = clock
        self._start = start
        self._meter = meter
        self._max_requests = max_requests
        self._served: StartedEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preparers = ThreadPoolExecutor(_NUM_PREPARERS, thread_name_prefix="slipstream-requests")
        self._exchanges: set[EngineExchange] = set()
        self._by_request: dict[str, EngineExchange] = {}
        self._drafted: dict[str, EngineExchange] = {}
        self._num_preparing = 0
        self._num_answers = 0
        # One object for all calls, so that the engine hands over a step at once.
        self._sink = self._deliver
        self._sweep: asyncio.TimerHandle | None = None
        self._id = secrets.token_hex(6)
        self._num_sent = 0
        self._num_failed = 0
        self._num_scored = 0

    @property
    def name(self) -> str:
        """The configured name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Chat, completions, embeddings and responses; the context is known once the model is loaded."""
        max_context = self._served.model.max_context if self._served is not None else None
        return Capabilities(
            operations=_OPERATIONS, max_context_tokens=max_context, headers=NO_HEADERS, continues=_CONTINUES
        )

    async def open(self) -> None:
        """Load the model. Raises: ConfigurationError where it cannot be served."""
        if self._served is None:
            self._loop = asyncio.get_running_loop()
            self._served = await asyncio.to_thread(self._start)

    async def aclose(self) -> None:
        """End every call in flight with UpstreamCut, stop the engine and wait for it. Safe to call twice."""
        served, self._served = self._served, None
        for exchange in list(self._exchanges):
            exchange.fail(UpstreamCut(f"backend {self._name} was closed"))
        if self._sweep is not None:
            self._sweep.cancel()
        self._preparers.shutdown(wait=False)
        if served is not None:
            await asyncio.to_thread(served.engine.close)

    def statistics(self) -> Statistics:
        """A snapshot of the counters; `failed` counts calls that ended in an UpstreamError."""
        in_flight = len(self._exchanges) + self._num_preparing
        return Statistics(in_flight=in_flight, sent=self._num_sent, failed=self._num_failed)

    def model_statistics(self) -> ModelStatistics | None:
        """What the engine and its answers have come to; None while no model is loaded."""
        return self._meter.statistics(self._served.engine.statistics()) if self._served is not None else None

    def take_answer_times(self) -> list[AnswerTimes]:
        """The times of the calls answered since the last time."""
        return self._meter.take_times()

    async def send(self, call: Call) -> Reply:
        """Answer the call. What the engine refuses is a reply with its error, as an upstream's would be.

        Raises: ConnectFailed where it is closed or its engine has stopped; UpstreamError where it fails or is late;
        UnknownPath for an operation that it does not have.
        """
        self._num_sent += 1
        served = self._served
        if served is None:
            raise self._failed(ConnectFailed(f"backend {self._name} is closed"))
        if call.operation not in _OPERATIONS:
            raise UnknownPath(f"backend {self._name} does not answer {call.method} {call.path}")
        if self._is_full():
            return self._too_many()
        try:
            job = await self._prepare(call, served)
            return self._too_many() if self._is_full() else await self._answer(call, job, served.engine)
        except InvalidRequest as error:
            return Reply(error.status, [_JSON], body=error.body())

    async def score(self, prefix: Sequence[int], continuation: Sequence[int]) -> Sequence[int]:
        """The model's greedy choice at each position: `len(continuation) + 1` tokens. `prefix` is not empty.

        Raises: as `send`; InvalidRequest for tokens that the model does not have, or too many.
        """
        served = self._served
        if served is None:
            raise ConnectFailed(f"backend {self._name} is closed")
        self._num_scored += 1
        job, answer = score_job(f"score-{self._id}{self._num_scored:x}", prefix, continuation)
        call = Call(
            operation=Operation.COMPLETION,
            path="/completions",
            raw=b"",
            body=None,
            model="",
            deadline=self._clock.now() + _SCORE_LIMIT_S,
            facts=Facts(),
        )
        await self._answer(call, job, served.engine)
        return answer.choices

    def is_writing(self, answer_id: str) -> bool:
        """Whether drafts may be pushed onto an answer of that id, which is another caller's perhaps."""
        return answer_id in self._drafted

    async def push(self, draft: Draft, *, tenant: str, key_id: str) -> None:
        """Hand over a draft for an answer of that caller. Raises: UnknownObject."""
        exchange, num_before = self._written(draft.id, (tenant, key_id))
        if self._served is not None:
            self._served.engine.push(exchange.requests[0], num_before + draft.at, draft.tokens, MAX_KEPT)

    async def verify(self, draft: Draft, *, tenant: str, key_id: str, alone: bool = False) -> None:
        """See `Verifier.verify`. Raises: UnknownObject."""
        if draft.tokens:
            await self.push(draft, tenant=tenant, key_id=key_id)
        exchange, _ = self._written(draft.id, (tenant, key_id))
        if self._served is not None:
            self._served.engine.go_on(exchange.requests[0], freely=alone)

    def _written(self, answer_id: str, caller: tuple[str, str]) -> tuple[EngineExchange, int]:
        """An answer that takes drafts of that caller, and how many tokens stand before it. Raises: UnknownObject."""
        exchange = self._drafted.get(answer_id)
        if exchange is None or exchange.drafted is None or exchange.caller != caller:
            raise UnknownObject(f'there is no answer "{answer_id}" that takes drafts, or not any more')
        return exchange, exchange.drafted.num_before

    async def _prepare(self, call: Call, served: StartedEngine) -> Job:
        number = f"{self._id}{self._num_sent:x}"
        head = Head(f"{_ID_PREFIX[call.operation]}{number}", int(self._clock.wall()), call.model, served.fingerprint)
        loop = asyncio.get_running_loop()
        self._num_preparing += 1
        try:
            return await loop.run_in_executor(self._preparers, plan, call, served.model, head)
        except RequestRefused as error:
            raise translated(error) from error
        finally:
            self._num_preparing -= 1

    async def _answer(self, call: Call, job: Job, engine: EngineHandle) -> Reply:
        exchange = EngineExchange(call, job, self._clock, partial(self._over, engine))
        call.facts.sent_at = self._clock.now()
        reply = None
        notes = (
            [(b"x-slipstream-skipped-tools", ",".join(job.skipped_tools).encode("ascii"))] if job.skipped_tools else []
        )
        self._submit(exchange, job, engine)
        try:
            if exchange.is_stream:
                first = await exchange.next(call.timeouts.first_token_s, FirstTokenTimeout)
                reply = Reply(
                    200, [_EVENTS, *notes], stream=Stream(exchange, [EngineFactsTap(call.facts, exchange)], first=first)
                )
            else:
                body = await exchange.whole()
                call.facts.usage = exchange.usage()
                call.facts.speculation = exchange.speculation()
                reply = Reply(200, [_JSON, *notes], body=body)
        finally:
            if reply is None:
                await exchange.aclose()
        return reply

    def _submit(self, exchange: EngineExchange, job: Job, engine: EngineHandle) -> None:
        if self._served is None:
            raise self._failed(ConnectFailed(f"backend {self._name} is closed"))
        self._exchanges.add(exchange)
        if exchange.drafted is not None:
            self._drafted[exchange.drafted.id] = exchange
        self._num_answers += exchange.num_answers
        self._watch()
        try:
            for request in job.requests:
                self._by_request[request.id] = exchange
                engine.submit(request, self._sink)
        except RequestRefused as error:
            exchange.fail(translated(error))
        except EngineStopped as error:
            exchange.fail(ConnectFailed(f"the engine of backend {self._name} has stopped: {error}"))

    def _deliver(self, events: list[Event]) -> None:
        """A step's events; called by the engine's thread."""
        assert self._loop is not None, "the engine was started on a loop"
        self._loop.call_soon_threadsafe(self._receive, events)

    def _receive(self, events: list[Event]) -> None:
        touched = set()
        for event in events:
            exchange = self._by_request.get(event.request_id)
            # A request that was given up may have had its step already.
            if exchange is not None:
                exchange.take(event)
                if event.finish_reason is not None:
                    self._meter.finished(event.finish_reason)
                touched.add(exchange)
        for exchange in touched:
            exchange.wake()

    def _over(self, engine: EngineHandle, exchange: EngineExchange) -> None:
        """A call has its answer, or will not get one."""
        if exchange not in self._exchanges:
            return
        self._exchanges.discard(exchange)
        self._num_answers -= exchange.num_answers
        for request_id in exchange.requests:
            self._by_request.pop(request_id, None)
        if exchange.drafted is not None:
            self._drafted.pop(exchange.drafted.id, None)
        for request_id in exchange.unfinished:
            engine.abort(request_id)
        if exchange.error is None:
            self._meter.answered(exchange.own_usage(), exchange.facts, self._clock.now())
        elif isinstance(exchange.error, UpstreamError) and not exchange.is_closed:
            self._num_failed += 1

    def _is_full(self) -> bool:
        return self._num_answers + self._num_preparing >= self._max_requests

    def _too_many(self) -> Reply:
        num_in_hand = self._num_answers + self._num_preparing
        message = f"backend {self._name} has {num_in_hand} answers in hand already; try again later"
        body = error_body(message, type="rate_limit_error", code="too_many_requests")
        return Reply(429, [_JSON, _RETRY_AFTER], body=body)

    def _failed(self, error: UpstreamError) -> UpstreamError:
        self._num_failed += 1
        return error

    def _watch(self) -> None:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_TICK_S, self._enforce_limits)

    def _enforce_limits(self) -> None:
        self._sweep = None
        now = self._clock.now()
        for exchange in list(self._exchanges):
            exchange.expire(now)
        if self._exchanges:
            self._watch()
