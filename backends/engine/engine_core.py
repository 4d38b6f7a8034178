"""What an engine does in its thread: it admits requests, makes steps of their sequences, and ends them.

    plan = schedule -> propose -> run -> postprocess

What fails in a step is run again sequence by sequence, so that only the request at fault fails. No thread, no queue and
no lock: `engine.py` has them.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from torch import Tensor

from backends.engine.answer import Answer
from backends.engine.calls import Calls, EngineCall, Sink
from backends.engine.choosing.sampling import Choice
from backends.engine.errors import EngineError, EngineStopped, RequestRefused, SequenceRefused, as_engine_error
from backends.engine.load import EngineParts
from backends.engine.request import Request
from backends.engine.sequence import Sequence, Slice, State
from backends.engine.statistics import EngineStatistics, StepCounts
from backends.engine.step.plan import Transfers

logger = logging.getLogger(__name__)

_SEED_BITS = 63
_KEPT_QUEUE_TIMES = 1024
"""Waits handed out one by one; older ones are known in sum only."""


class EngineCore:
    """One loaded model and the requests in hand. Owned by the engine's thread; any may ask for `statistics`.

    `on_over` is told the id of each request whose last event is on its way. `now` reads a clock in seconds; `rng` draws
    the seeds of requests that bring none.
    """

    def __init__(
        self, parts: EngineParts, *, on_over: Callable[[str], None], now: Callable[[], float], rng: random.Random
    ) -> None:
        self._parts = parts
        self._now = now
        self._rng = rng
        self._calls = Calls(on_over)
        self._counts = StepCounts()
        self._num_started = 0
        self._queue_s = 0.0
        self._queue_times: deque[float] = deque(maxlen=_KEPT_QUEUE_TIMES)
        self._next_order = 0

    @property
    def parts(self) -> EngineParts:
        """What the engine is made of."""
        return self._parts

    @property
    def has_work(self) -> bool:
        """Whether a step has something to do."""
        return self._parts.scheduler.has_work

    def statistics(self, *, num_requests: int, failure: str | None) -> EngineStatistics:
        """The engine at this moment: what is counted here, with what its owner knows."""
        parts = self._parts
        return EngineStatistics(
            num_requests=num_requests,
            num_started=self._num_started,
            queue_s=self._queue_s,
            queue_times=tuple(self._queue_times.copy()),
            steps=replace(self._counts),
            scheduler=parts.scheduler.statistics(),
            speculation=parts.speculator.statistics(),
            weight_bytes=parts.weight_bytes,
            page_bytes=parts.page_bytes,
            compute=replace(parts.compute),
            peaks=parts.peaks,
            kernel_fallbacks=parts.fallbacks.given_up,
            failure=failure,
        )

    def admit(self, request: Request, sink: Sink, submitted_s: float) -> None:
        """Takes in a request that was submitted at a second of the clock; one that fails here ends with its error."""
        call = EngineCall(request, sink, submitted_s)
        try:
            answers = [self._answer(request, index) for index in range(request.best_of or request.n)]
        except Exception as error:  # the step's border, for one request
            logger.exception("a request fails")
            self._calls.add(call, [])
            self._end(call, as_engine_error(error))
            return
        self._calls.add(call, answers)
        for answer in answers:
            self._parts.scheduler.add(answer.sequence)

    def abort(self, request_id: str) -> None:
        """Gives a request up; nothing happens where it is over."""
        call = self._calls.get(request_id)
        if call is not None:
            for sequence in call.running:
                self._leave(sequence)
            self._calls.end(call, "abort")

    def push(self, request_id: str, start: int, tokens: SequenceOf[int], most_kept: int) -> None:
        """Keeps a guess of how the request's first answer goes on; nothing happens where it is over."""
        call = self._calls.get(request_id)
        if call is not None:
            for sequence in call.running[:1]:
                self._parts.speculator.push(sequence, start, tokens, most_kept)

    def go_on(self, request_id: str, *, freely: bool) -> None:
        """Lets a request that is held go on, for a step or `freely` to its end; nothing happens where it is over."""
        call = self._calls.get(request_id)
        if call is not None:
            for sequence in call.running[:1]:
                sequence.by_rounds = sequence.by_rounds and not freely
                self._parts.scheduler.go_on(sequence)

    def step(self) -> None:
        """Makes one step, and hands its outcome to the requests."""
        began = self._now()
        plan = self._parts.scheduler.schedule(self._parts.speculator.room)
        scheduled = self._now()
        self._transfer(plan.transfers)
        done = self._run(plan.slices, self._propose(plan.slices))
        ran = self._now()
        for sequence, error in plan.failed:
            self._end(self._calls.of(sequence), error)
        for part, choice in done:
            self._postprocess(part, choice)
        counts = self._counts
        counts.num_steps += 1
        counts.run_s += ran - scheduled
        counts.busy_s += self._now() - began

    def deliver(self) -> None:
        """Hands out the events that have come up; a request whose sink fails is aborted."""
        for request_id in self._calls.deliver():
            self.abort(request_id)

    def end_all(self, stopped: EngineStopped) -> None:
        """The last words to every request in hand. The parts may be broken, so they are left alone."""
        for call in self._calls.all():
            self._calls.end(call, "error", stopped)
        self._calls.deliver()

    def close(self) -> None:
        """Ends what runs beside the engine."""
        self._parts.close()

    def _transfer(self, transfers: Transfers) -> None:
        if transfers.to_host or transfers.to_device:
            self._parts.runner.transfer(transfers)
            if self._parts.draft is not None:
                self._parts.draft.transfer(transfers)

    def _propose(self, slices: SequenceOf[Slice]) -> dict[Sequence, Tensor]:
        try:
            return self._parts.speculator.propose(slices)
        except RequestRefused:  # of one request; whose it is shows when the step is carried out
            for part in slices:
                part.sequence.draft.clear()
            return {}
        except Exception:  # drafts are a help, so their failure fails nobody
            logger.exception("drafting failed; the engine goes on without")
            self._parts.speculator.disable()
            for part in slices:
                part.sequence.draft.clear()
            return {}

    def _run(self, slices: SequenceOf[Slice], draft_probs: dict[Sequence, Tensor]) -> list[tuple[Slice, Choice | None]]:
        """The slices that could be carried out, with what was chosen where something was."""
        began = self._parts.work_clock()
        try:
            choices = self._parts.runner.run(slices, draft_probs)
        except EngineStopped:  # a rank is gone
            raise
        except SequenceRefused as refused:
            self._end(self._calls.of(refused.sequence), refused)
            return self._run([part for part in slices if part.sequence.state is State.RUNNING], draft_probs)
        except Exception:  # the step's border: whose fault it was is found out below
            logger.exception("a step failed; it is run again, one sequence at a time")
            return self._run_apart(slices)
        done = list(zip(slices, choices, strict=True))
        self._parts.speculator.observe(done, self._parts.work_clock() - began)
        return done

    def _run_apart(self, slices: SequenceOf[Slice]) -> list[tuple[Slice, Choice | None]]:
        """Without drafts; fails the requests whose sequences fail alone. Raises where nothing runs any more."""
        self._counts.num_failed += 1
        done: list[tuple[Slice, Choice | None]] = []
        for part in slices:
            part.sequence.draft.clear()
            if part.sequence.state is not State.RUNNING:
                continue
            try:
                done += zip((part,), self._parts.runner.run((part,)), strict=True)
            except Exception as error:  # the step's border, for one sequence
                logger.exception("a request fails")
                self._end(self._calls.of(part.sequence), as_engine_error(error))
        if not done:
            self._parts.runner.probe()
        return done

    def _postprocess(self, part: Slice, choice: Choice | None) -> None:
        sequence = part.sequence
        # Another sequence of its request may have failed in this very step.
        if sequence.state is not State.RUNNING:
            return
        self._counts.add(part)
        call = self._calls.of(sequence)
        if not call.has_started:
            call.has_started = True
            queue_s = self._now() - call.submitted_s
            self._num_started += 1
            self._queue_s += queue_s
            self._queue_times.append(queue_s)
        try:
            if choice is None:
                self._read_prompt(part)
            else:
                self._accept(part, choice)
        except Exception as error:  # the step's border, for one sequence
            logger.exception("a request fails")
            self._end(call, as_engine_error(error))

    def _read_prompt(self, part: Slice) -> None:
        """A part of a prompt is computed, after which nothing is to be chosen yet, or at all."""
        sequence = part.sequence
        self._parts.scheduler.commit(part, [])
        if part.samples:
            embedding, logprobs = self._parts.runner.embedding(sequence), self._parts.runner.prompt_logprobs(sequence)
            self._calls.prompt_done(sequence, embedding=embedding, prompt_logprobs=logprobs)
            self._leave(sequence)

    def _accept(self, part: Slice, choice: Choice) -> None:
        """Tokens were chosen for the slice's sequence."""
        sequence = part.sequence
        prompt_logprobs = None if sequence.num_output else self._parts.runner.prompt_logprobs(sequence)
        progress = self._calls.of(sequence).answers[sequence].take(choice)
        self._parts.scheduler.commit(part, progress.kept)
        self._calls.progress(sequence, progress, self._parts.speculator.outcome(sequence), prompt_logprobs)
        if progress.finish_reason is not None:
            self._leave(sequence)
        elif sequence.by_rounds:
            self._parts.scheduler.hold(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """A sequence has ended: everybody forgets it, and its pages are free."""
        self._parts.scheduler.finish(sequence)
        self._parts.speculator.forget(sequence)
        self._parts.runner.forget(sequence)

    def _answer(self, request: Request, index: int) -> Answer:
        params = request.params
        if (request.best_of or 0) > request.n and params.logprobs is None:
            # The answers are ranked by what their tokens' log-probabilities come to.
            request = replace(request, params=replace(params, logprobs=0))
        seed = self._rng.getrandbits(_SEED_BITS) if params.seed is None else params.seed + index
        sequence = Sequence(request, index, self._next_order, [*request.prompt, *request.emitted], seed)
        sequence.by_rounds = request.by_rounds
        self._next_order += 1
        return Answer(
            sequence,
            self._parts.tokenizer,
            eos_token_ids=frozenset(self._parts.config.eos_token_ids),
            max_context=self._parts.max_context,
        )

    def _end(self, call: EngineCall, error: EngineError) -> None:
        for sequence in call.running:
            self._leave(sequence)
        self._calls.end(call, "error", error)
