"""One replica in the making of steps: chunked prefill and decoding in one batch, first come, first served.

    begin a step: take up what fits -> ... its time passes ... -> complete it: tokens come out -> begin the next

Steps in which sequences only decode are jumped in one go, up to the next one that ends. Time is handed in.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.simulation.blocks import BlockCache, Lease
from backends.simulation.latency import ReplicaStepTime


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """What a replica is: its speed and its limits, in tokens where nothing else is said."""

    step: ReplicaStepTime = field(default_factory=ReplicaStepTime)
    chunk_tokens: int = 2048
    """The most tokens of one step, prompts and decoding sequences together."""
    max_sequences: int = 256
    kv_tokens: int = 800_000
    host_kv_tokens: int = 0
    block_tokens: int = 512
    max_run: int = 0
    """The most decode steps that are jumped in one go; 0 for no limit."""


class ReplicaRequest:
    """One request to a replica, and how far it is. Times are those that were handed in; None where it is not so far."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed",
        "finish_count",
        "finished_at",
        "first_token_at",
        "is_cancelled",
        "lease",
        "output_tokens",
        "prompt_tokens",
    )

    def __init__(
        self, prompt_tokens: int, output_tokens: int, blocks: Sequence[int] = (), cached_tokens: int = 0
    ) -> None:
        """The first numbers are at least 1; `blocks` are the ids of the whole blocks that the prompt begins with, and
        `cached_tokens` so many of it as are cached whatever the replica has seen."""
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.cached_tokens = cached_tokens
        self.computed = 0
        self.finish_count = 0
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.is_cancelled = False
        self.lease: Lease | None = None


class SimulatedReplica:
    """A continuous-batching server of one model.

    A request's whole room, prompt and answer, is set aside when it is taken up, so nothing is ever preempted; while
    the first in line does not fit, nobody behind it is taken up. Callers `advance` to the present before they submit
    or cancel.
    """

    def __init__(self, model: ReplicaModel) -> None:
        self._model = model
        self._step = model.step
        self.cache = BlockCache(model.kv_tokens, model.block_tokens, model.host_kv_tokens)
        self._waiting: deque[ReplicaRequest] = deque()
        self._prefilling: deque[ReplicaRequest] = deque()
        self._decoding: list[tuple[int, int, ReplicaRequest]] = []
        self._num_decoding = 0
        self._num_joined = 0
        self._context = 0
        self._count = 0
        self._chunks: list[tuple[ReplicaRequest, int]] = []
        self._run_steps = 0
        self._run_start = 0.0
        self._run_flat_s = 0.0
        self._run_size = 0
        self._run_context = 0
        self.step_ends_at = math.inf
        """When the step or the run of steps in progress is over; infinite while there is nothing to do."""

    @property
    def num_waiting(self) -> int:
        """Requests that have not been taken up."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._prefilling) + self._num_decoding

    def fits(self, work: ReplicaRequest) -> bool:
        """Whether there could ever be room for it."""
        return work.prompt_tokens + work.output_tokens <= self.cache.capacity

    def num_output(self, work: ReplicaRequest) -> int:
        """Tokens that have come out of it, as of the last completed step."""
        if work.finished_at is not None:
            return work.output_tokens
        if work.first_token_at is None:
            return 0
        return work.output_tokens - (work.finish_count - self._count)

    def submit(self, work: ReplicaRequest, now: float) -> None:
        """Get in line. `fits` holds."""
        self._waiting.append(work)
        if self.step_ends_at == math.inf:
            self._begin(now)
        elif len(self._waiting) == 1:
            self._shorten_run(now)

    def cancel(self, work: ReplicaRequest, now: float) -> None:
        """Take it out; what it computed stays cached. Nothing where it is over already."""
        if work.is_cancelled or work.finished_at is not None:
            return
        work.is_cancelled = True
        if work.lease is None:
            self._waiting.remove(work)
        else:
            if work.first_token_at is None:
                self._prefilling.remove(work)
            else:
                self._num_decoding -= 1
                self._context -= work.prompt_tokens + self.num_output(work)
            self.cache.release(work.lease)
        self._shorten_run(now)

    def advance(self, now: float) -> list[ReplicaRequest]:
        """Complete the steps that are over by then; returns those with a first or a last token, in order.

        At infinity everything is over. A request whose only token is its first is returned once.
        """
        changed: list[ReplicaRequest] = []
        while (end := self.step_ends_at) <= now and end < math.inf:
            self._complete(end, changed)
            self._begin(end)
        return changed

    def _begin(self, now: float) -> None:
        """Decide what the next step holds, and how long it takes."""
        budget = self._model.chunk_tokens - self._num_decoding
        chunks = self._chunks
        attention_s = 0.0
        for work in self._prefilling:
            if budget <= 0:
                break
            budget, attention_s = self._add_chunk(work, budget, attention_s)
        while self._waiting and budget > 0 and self._take_up(self._waiting[0]):
            work = self._waiting.popleft()
            assert work.lease is not None, "it has been taken up"
            attention_s += work.lease.host_tokens * self._step.host_token_s / self._step.speed
            budget, attention_s = self._add_chunk(work, budget, attention_s)
        if chunks:
            num_tokens = self._model.chunk_tokens - budget
            flat_s = self._step.flat_s(num_tokens, self._num_decoding + len(chunks))
            self._run_steps = 1
            self.step_ends_at = now + flat_s + attention_s + self._step.decode_s(self._context)
        elif self._num_decoding:
            self._begin_run(now)
        else:
            self.step_ends_at = math.inf

    def _add_chunk(self, work: ReplicaRequest, budget: int, attention_s: float) -> tuple[int, float]:
        size = min(budget, work.prompt_tokens - work.computed)
        self._chunks.append((work, size))
        return budget - size, attention_s + self._step.prefill_s(size, work.computed)

    def _take_up(self, work: ReplicaRequest) -> bool:
        if self.num_running >= self._model.max_sequences:
            return False
        lease = self.cache.acquire(work.blocks, work.prompt_tokens + work.output_tokens)
        if lease is None:
            return False
        work.lease = lease
        # The last token is always computed: the first one of the answer comes out of it.
        cached = max(lease.cached_tokens, work.cached_tokens)
        work.cached_tokens = work.computed = min(cached, work.prompt_tokens - 1)
        self._prefilling.append(work)
        return True

    def _begin_run(self, now: float) -> None:
        while self._decoding[0][2].is_cancelled:
            heapq.heappop(self._decoding)
        steps = self._decoding[0][0] - self._count
        if self._model.max_run:
            steps = min(steps, self._model.max_run)
        self._run_start = now
        self._run_size = self._num_decoding
        self._run_context = self._context
        self._run_flat_s = self._step.flat_s(self._run_size, self._run_size)
        self._run_steps = steps
        self.step_ends_at = now + self._run_s(steps)

    def _run_s(self, steps: int) -> float:
        """Seconds of the first `steps` of the run: each finds the contexts longer by a token than the one before."""
        context = steps * self._run_context + self._run_size * (steps * (steps - 1) // 2)
        return steps * self._run_flat_s + self._step.decode_s(context)

    def _shorten_run(self, now: float) -> None:
        """End the run with the step that is in progress: there is something to decide."""
        if self._chunks or self._run_steps <= 1:
            return
        # Seconds of k steps are a k^2 + b k.
        a = self._step.decode_s(self._run_size) / 2
        b = self._run_flat_s + self._step.decode_s(self._run_context) - a
        passed_s = now - self._run_start
        root = (math.sqrt(b * b + 4 * a * passed_s) - b) / (2 * a) if a else passed_s / b
        steps = max(1, math.ceil(root))
        # Rounding may have put it on the wrong side of a boundary.
        while steps > 1 and self._run_s(steps - 1) >= passed_s:
            steps -= 1
        while self._run_s(steps) < passed_s:
            steps += 1
        if steps < self._run_steps:
            self._run_steps = steps
            self.step_ends_at = self._run_start + self._run_s(steps)

    def _complete(self, end: float, changed: list[ReplicaRequest]) -> None:
        self._count += self._run_steps
        self._context += self._num_decoding * self._run_steps
        decoding = self._decoding
        while decoding and decoding[0][0] <= self._count:
            work = heapq.heappop(decoding)[2]
            if not work.is_cancelled:
                self._num_decoding -= 1
                self._context -= work.prompt_tokens + work.output_tokens
                self._finish(work, end)
                changed.append(work)
        chunks, self._chunks = self._chunks, []
        for work, size in chunks:
            if not work.is_cancelled:
                self._computed(work, size, end, changed)

    def _computed(self, work: ReplicaRequest, size: int, end: float, changed: list[ReplicaRequest]) -> None:
        lease = work.lease
        assert lease is not None, "it is in the batch"
        before, work.computed = work.computed, work.computed + size
        block_tokens = self._model.block_tokens
        self.cache.publish(lease, work.blocks[before // block_tokens : work.computed // block_tokens])
        if work.computed < work.prompt_tokens:
            return
        # Those in line before it have been completed in this step, or earlier.
        self._prefilling.remove(work)
        work.first_token_at = end
        changed.append(work)
        if work.output_tokens == 1:
            self._finish(work, end)
            return
        work.finish_count = self._count + work.output_tokens - 1
        self._num_joined += 1
        heapq.heappush(self._decoding, (work.finish_count, self._num_joined, work))
        self._num_decoding += 1
        self._context += work.prompt_tokens + 1

    def _finish(self, work: ReplicaRequest, end: float) -> None:
        work.finished_at = end
        assert work.lease is not None, "it is in the batch"
        self.cache.release(work.lease)
