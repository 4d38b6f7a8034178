"""The engine: a thread that owns the model, a queue into it, events out of it.

    plan = schedule -> propose -> run -> postprocess

Requests come in from any thread and are refused at once where they cannot be answered. What fails in a step is run
again sequence by sequence, so that only the request at fault fails; where even a step of nothing fails, the engine
stops and tells everybody.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import torch
from torch import Tensor

from backends.engine.answer import Answer
from backends.engine.calls import Call, Calls, Sink
from backends.engine.choosing.grammar import GrammarFactory
from backends.engine.choosing.sampling import Choice, check_params
from backends.engine.choosing.sampling_params import check_emitted
from backends.engine.errors import EngineError, EngineStopped, RequestRefused, as_engine_error
from backends.engine.load import Parts, load_parts
from backends.engine.model.config import ModelConfig
from backends.engine.options import EngineOptions
from backends.engine.request import Request
from backends.engine.sequence import Sequence, Slice, State
from backends.engine.statistics import EngineStatistics, StepCounts
from backends.engine.step.plan import Transfers
from backends.engine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SEED_BITS = 63
_KEPT_QUEUE_TIMES = 1024
"""Waits handed out one by one; older ones are known in sum only."""


class Engine:
    """One model at work. `start` it, `submit` requests, `close` it.

    `load` makes the parts, in the engine's thread; `now` reads a clock in seconds; `rng` draws the seeds of requests
    that bring none.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        load: Callable[[EngineOptions, Callable[[], float]], Parts] = load_parts,
        now: Callable[[], float] = time.perf_counter,
        rng: random.Random | None = None,
    ) -> None:
        self._options = options
        self._load = load
        self._now = now
        self._rng = random.Random() if rng is None else rng
        self._parts: Parts | None = None
        self._thread: threading.Thread | None = None
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._calls = Calls(self._over)
        self._counts = StepCounts()
        self._num_started = 0
        self._queue_s = 0.0
        self._queue_times: deque[float] = deque(maxlen=_KEPT_QUEUE_TIMES)
        self._next_order = 0
        self._is_closing = False
        # Guards the two below, which any thread may look at.
        self._lock = threading.Lock()
        self._in_hand: set[str] = set()
        self._stopped: EngineStopped | None = EngineStopped("the engine was not started")

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's; to be asked for once the engine is started."""
        return self._loaded.tokenizer

    @property
    def config(self) -> ModelConfig:
        """The model's; to be asked for once the engine is started."""
        return self._loaded.config

    @property
    def grammars(self) -> GrammarFactory:
        """What makes grammars for requests, each compiled once; any thread may use it, once the engine is started."""
        return self._loaded.grammars

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together, as far as the model and the cache reach."""
        return self._loaded.max_context

    def start(self) -> None:
        """Loads the model and begins to work; waits until it is ready. Raises ModelError, OutOfMemory."""
        assert self._thread is None, "an engine starts once"
        ready: Future[Parts] = Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="engine", daemon=True)
        self._thread.start()
        ready.result()

    def submit(self, request: Request, sink: Sink) -> None:
        """Takes a request; `sink` gets its events, from the engine's thread, once a step. Does not wait.

        Raises RequestRefused, also where too many are in hand (code "engine_full"), and EngineStopped.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
        self._check(request)
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            if request.id in self._in_hand:
                raise RequestRefused(f"a request {request.id!r} is in hand already; give each an id of its own")
            if len(self._in_hand) >= self._options.max_requests:
                raise RequestRefused(
                    f"{len(self._in_hand)} requests are in hand, which is as many as are taken; try again later",
                    code="engine_full",
                )
            self._in_hand.add(request.id)
            self._commands.put(partial(self._admit, request, sink, self._now()))

    def abort(self, request_id: str) -> None:
        """Gives a request up; it ends with the reason "abort". Nothing happens where it is over."""
        self._commands.put(partial(self._abort, request_id))

    def close(self) -> None:
        """Stops after the running step and waits for it; what is in hand ends with EngineStopped."""
        self._commands.put(self._stop)
        if self._thread is not None:
            self._thread.join()

    def statistics(self) -> EngineStatistics:
        """The engine at this moment, from any thread."""
        parts = self._loaded
        return EngineStatistics(
            num_requests=len(self._in_hand),
            num_started=self._num_started,
            queue_s=self._queue_s,
            queue_times=tuple(self._queue_times.copy()),
            steps=replace(self._counts),
            scheduler=parts.scheduler.statistics(),
            speculation=parts.speculator.statistics(),
            weight_bytes=parts.weight_bytes,
            page_bytes=parts.page_bytes,
            work=replace(parts.work),
            peaks=parts.peaks,
            kernel_fallbacks=parts.fallbacks.given_up,
            failure=str(self._stopped) if self._stopped and self._stopped.__cause__ else None,
        )

    @property
    def _loaded(self) -> Parts:
        if self._parts is None:
            raise EngineStopped("the engine was not started")
        return self._parts

    def _check(self, request: Request) -> None:
        """Refuses what could never be answered."""
        parts = self._loaded
        vocab_size, num_prompt = parts.config.vocab_size, len(request.prompt)
        if not num_prompt:
            raise RequestRefused("the prompt is empty; send at least one token", param="prompt")
        if min(request.prompt) < 0 or max(request.prompt) >= vocab_size:
            raise RequestRefused(f"the prompt holds a token outside of 0..{vocab_size - 1}", param="prompt")
        if request.n < 1:
            raise RequestRefused(f"n is {request.n}; it must be at least 1", param="n")
        if request.best_of is not None and request.best_of < request.n:
            raise RequestRefused(f"best_of is {request.best_of}; it must be at least n ({request.n})", param="best_of")
        if request.adapter is not None:
            raise RequestRefused(f"there is no adapter {request.adapter!r}", param="model")
        if request.params.grammar is not None:
            parts.grammars.check(request.params.grammar)
        check_params(request.params, vocab_size=vocab_size, max_context=parts.max_context, num_prompt=num_prompt)
        check_emitted(request, vocab_size=vocab_size, max_context=parts.max_context)

    # From here on everything runs in the engine's thread.

    def _main(self, ready: Future[Parts]) -> None:
        try:
            if self._options.threads is not None:
                torch.set_num_threads(self._options.threads)
            self._parts = self._load(self._options, self._now)
        except BaseException as error:  # the caller of `start` waits for it
            ready.set_exception(error)
            return
        self._stopped = None
        ready.set_result(self._parts)
        stopped = EngineStopped("the engine is closed")
        try:
            with torch.inference_mode():
                while not self._is_closing:
                    self._take_commands()
                    if self._parts.scheduler.has_work:
                        self._step(self._parts)
                    self._deliver()
        except BaseException as error:  # the thread's border: it never dies silently
            logger.exception("the engine stops")
            stopped = EngineStopped(f"the engine stopped because of an error: {error}")
            stopped.__cause__ = error
        self._end_all(stopped)
        self._parts.close()

    def _take_commands(self) -> None:
        """Carries out what has come in; waits for something to do where there is nothing."""
        if not self._loaded.scheduler.has_work:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _step(self, parts: Parts) -> None:
        began = self._now()
        plan = parts.scheduler.schedule(parts.speculator.room)
        scheduled = self._now()
        self._transfer(parts, plan.transfers)
        done = self._run(parts, plan.slices, self._propose(parts, plan.slices))
        ran = self._now()
        for sequence, error in plan.failed:
            self._end(self._calls.of(sequence), error)
        for part, choice in done:
            self._postprocess(parts, part, choice)
        counts = self._counts
        counts.num_steps += 1
        counts.run_s += ran - scheduled
        counts.busy_s += self._now() - began

    def _transfer(self, parts: Parts, transfers: Transfers) -> None:
        if transfers.to_host or transfers.to_device:
            parts.runner.transfer(transfers)
            if parts.draft is not None:
                parts.draft.transfer(transfers)

    def _propose(self, parts: Parts, slices: SequenceOf[Slice]) -> dict[Sequence, Tensor]:
        try:
            return parts.speculator.propose(slices)
        except RequestRefused:  # of one request; whose it is shows when the step is carried out
            for part in slices:
                part.sequence.draft.clear()
            return {}
        except Exception:  # drafts are a help, so their failure fails nobody
            logger.exception("drafting failed; the engine goes on without")
            parts.speculator.disable()
            for part in slices:
                part.sequence.draft.clear()
            return {}

    def _run(
        self, parts: Parts, slices: SequenceOf[Slice], draft_probs: dict[Sequence, Tensor]
    ) -> list[tuple[Slice, Choice | None]]:
        """The slices that could be carried out, with what was chosen where something was."""
        began = self._now()
        try:
            choices = parts.runner.run(slices, draft_probs)
        except EngineStopped:  # a rank is gone
            raise
        except Exception:  # the step's border: whose fault it was is found out below
            logger.exception("a step failed; it is run again, one sequence at a time")
            return self._run_apart(parts, slices)
        done = list(zip(slices, choices, strict=True))
        parts.speculator.observe(done, self._now() - began)
        return done

    def _run_apart(self, parts: Parts, slices: SequenceOf[Slice]) -> list[tuple[Slice, Choice | None]]:
        """Without drafts; fails the requests whose sequences fail alone. Raises where nothing runs any more."""
        self._counts.num_failed += 1
        done: list[tuple[Slice, Choice | None]] = []
        for part in slices:
            part.sequence.draft.clear()
            if part.sequence.state is not State.RUNNING:
                continue
            try:
                done += zip((part,), parts.runner.run((part,)), strict=True)
            except Exception as error:  # the step's border, for one sequence
                logger.exception("a request fails")
                self._end(self._calls.of(part.sequence), as_engine_error(error))
        if not done:
            parts.runner.probe()
        return done

    def _postprocess(self, parts: Parts, part: Slice, choice: Choice | None) -> None:
        sequence = part.sequence
        # Another sequence of its request may have failed in this very step.
        if sequence.state is not State.RUNNING:
            return
        self._counts.add(part, choice)
        call = self._calls.of(sequence)
        if not call.has_started:
            call.has_started = True
            queue_s = self._now() - call.submitted_s
            self._num_started += 1
            self._queue_s += queue_s
            self._queue_times.append(queue_s)
        try:
            if choice is None:
                self._read_prompt(parts, part)
            else:
                self._accept(parts, part, choice)
        except Exception as error:  # the step's border, for one sequence
            logger.exception("a request fails")
            self._end(call, as_engine_error(error))

    def _read_prompt(self, parts: Parts, part: Slice) -> None:
        """A part of a prompt is computed, after which nothing is to be chosen yet, or at all."""
        sequence = part.sequence
        parts.scheduler.commit(part, [])
        if part.samples:
            embedding, logprobs = parts.runner.embedding(sequence), parts.runner.prompt_logprobs(sequence)
            self._calls.prompt_done(sequence, embedding=embedding, prompt_logprobs=logprobs)
            self._leave(parts, sequence)

    def _accept(self, parts: Parts, part: Slice, choice: Choice) -> None:
        """Tokens were chosen for the slice's sequence."""
        sequence = part.sequence
        prompt_logprobs = None if sequence.num_output else parts.runner.prompt_logprobs(sequence)
        progress = self._calls.of(sequence).answers[sequence].take(choice)
        parts.scheduler.commit(part, progress.kept)
        self._calls.progress(sequence, progress, parts.speculator.outcome(sequence), prompt_logprobs)
        if progress.finish_reason is not None:
            self._leave(parts, sequence)

    def _leave(self, parts: Parts, sequence: Sequence) -> None:
        """A sequence has ended: everybody forgets it, and its pages are free."""
        parts.scheduler.finish(sequence)
        parts.speculator.forget(sequence)
        parts.runner.forget(sequence)

    def _admit(self, request: Request, sink: Sink, submitted_s: float) -> None:
        parts = self._loaded
        call = Call(request, sink, submitted_s)
        try:
            answers = [self._answer(parts, request, index) for index in range(request.best_of or request.n)]
        except Exception as error:  # the step's border, for one request
            logger.exception("a request fails")
            self._calls.add(call, [])
            self._end(call, as_engine_error(error))
            return
        self._calls.add(call, answers)
        for answer in answers:
            parts.scheduler.add(answer.sequence)

    def _answer(self, parts: Parts, request: Request, index: int) -> Answer:
        params = request.params
        if (request.best_of or 0) > request.n and params.logprobs is None:
            # The answers are ranked by what their tokens' log-probabilities come to.
            request = replace(request, params=replace(params, logprobs=0))
        seed = self._rng.getrandbits(_SEED_BITS) if params.seed is None else params.seed + index
        sequence = Sequence(request, index, self._next_order, [*request.prompt, *request.emitted], seed)
        self._next_order += 1
        return Answer(
            sequence,
            parts.tokenizer,
            eos_token_ids=frozenset(parts.config.eos_token_ids),
            max_context=parts.max_context,
        )

    def _abort(self, request_id: str) -> None:
        call = self._calls.get(request_id)
        if call is not None:
            for sequence in call.running:
                self._leave(self._loaded, sequence)
            self._calls.end(call, "abort")

    def _end(self, call: Call, error: EngineError) -> None:
        for sequence in call.running:
            self._leave(self._loaded, sequence)
        self._calls.end(call, "error", error)

    def _end_all(self, stopped: EngineStopped) -> None:
        """The last words. The parts may be broken, so they are left alone."""
        with self._lock:
            self._stopped = stopped
        while not self._commands.empty():
            try:
                self._commands.get()()
            except Exception:  # what is broken must not keep the others from hearing of it
                logger.exception("a command fails while the engine stops")
        for call in self._calls.all():
            self._calls.end(call, "error", stopped)
        self._calls.deliver()

    def _stop(self) -> None:
        self._is_closing = True

    def _over(self, request_id: str) -> None:
        with self._lock:
            self._in_hand.discard(request_id)

    def _deliver(self) -> None:
        for request_id in self._calls.deliver():
            self._abort(request_id)
