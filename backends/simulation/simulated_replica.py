"""A replica as a sequence of steps: chunked prefill and decoding in one batch, first come, first served.

    begin a step: admit requests that fit -> ... its time passes ... -> complete it: new tokens -> begin the next

Steps in which sequences only decode are computed together, as one run up to the next sequence that ends. The present
time is an argument.
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
    """The speed and the limits of a replica; limits are in tokens unless their name says otherwise."""

    step: ReplicaStepTime = field(default_factory=ReplicaStepTime)
    chunk_tokens: int = 2048
    """The most tokens of one step, prompts and decoding sequences together."""
    max_sequences: int = 256
    kv_tokens: int = 800_000
    host_kv_tokens: int = 0
    block_tokens: int = 512
    max_run: int = 0
    """The most decode steps that are computed as one run; 0 for no limit."""


class ReplicaRequest:
    """One request to a replica and its progress. Times are None until the event has happened."""

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
        """`prompt_tokens` and `output_tokens` are at least 1. `blocks` are the ids of the prompt's full blocks.
        `cached_tokens` of the prompt count as cached even if the replica has not seen them."""
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

    The memory for a request's prompt and answer is reserved when it is admitted to the batch, so nothing is ever
    preempted. While the first request of the queue does not fit, none behind it is admitted. Callers `advance` to the
    present before they submit or cancel.
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
        """When the present step or run of steps ends; infinite while the replica is idle."""

    @property
    def num_waiting(self) -> int:
        """Requests that are queued."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._prefilling) + self._num_decoding

    def fits(self, request: ReplicaRequest) -> bool:
        """Whether a request fits into the memory at all."""
        return request.prompt_tokens + request.output_tokens <= self.cache.capacity

    def num_output(self, request: ReplicaRequest) -> int:
        """The tokens of its answer that are computed, as of the last completed step."""
        if request.finished_at is not None:
            return request.output_tokens
        if request.first_token_at is None:
            return 0
        return request.output_tokens - (request.finish_count - self._count)

    def submit(self, request: ReplicaRequest, now: float) -> None:
        """Queue a request for which `fits` is true."""
        self._waiting.append(request)
        if self.step_ends_at == math.inf:
            self._begin(now)
        elif len(self._waiting) == 1:
            self._shorten_run(now)

    def cancel(self, request: ReplicaRequest, now: float) -> None:
        """Remove a request, if it is not over; the blocks that it has computed stay cached."""
        if request.is_cancelled or request.finished_at is not None:
            return
        request.is_cancelled = True
        if request.lease is None:
            self._waiting.remove(request)
        else:
            if request.first_token_at is None:
                self._prefilling.remove(request)
            else:
                self._num_decoding -= 1
                self._context -= request.prompt_tokens + self.num_output(request)
            self.cache.release(request.lease)
        self._shorten_run(now)

    def advance(self, now: float) -> list[ReplicaRequest]:
        """Complete the steps that end by `now`; returns the requests that got their first or last token, in order.

        At infinity all requests are completed. A request of one token is returned once.
        """
        changed: list[ReplicaRequest] = []
        while (end := self.step_ends_at) <= now and end < math.inf:
            self._complete(end, changed)
            self._begin(end)
        return changed

    def _begin(self, now: float) -> None:
        """Decide the content of the next step, and how long it takes."""
        budget = self._model.chunk_tokens - self._num_decoding
        chunks = self._chunks
        attention_s = 0.0
        for request in self._prefilling:
            if budget <= 0:
                break
            budget, attention_s = self._add_chunk(request, budget, attention_s)
        while self._waiting and budget > 0 and self._admit(self._waiting[0]):
            request = self._waiting.popleft()
            assert request.lease is not None, "it has been admitted"
            attention_s += request.lease.host_tokens * self._step.host_token_s / self._step.speed
            budget, attention_s = self._add_chunk(request, budget, attention_s)
        if chunks:
            num_tokens = self._model.chunk_tokens - budget
            flat_s = self._step.flat_s(num_tokens, self._num_decoding + len(chunks))
            self._run_steps = 1
            self.step_ends_at = now + flat_s + attention_s + self._step.decode_s(self._context)
        elif self._num_decoding:
            self._begin_run(now)
        else:
            self.step_ends_at = math.inf

    def _add_chunk(self, request: ReplicaRequest, budget: int, attention_s: float) -> tuple[int, float]:
        size = min(budget, request.prompt_tokens - request.computed)
        self._chunks.append((request, size))
        return budget - size, attention_s + self._step.prefill_s(size, request.computed)

    def _admit(self, request: ReplicaRequest) -> bool:
        if self.num_running >= self._model.max_sequences:
            return False
        lease = self.cache.acquire(request.blocks, request.prompt_tokens + request.output_tokens)
        if lease is None:
            return False
        request.lease = lease
        # The last token of a prompt is always computed, since it yields the first one of the answer.
        cached = max(lease.cached_tokens, request.cached_tokens)
        request.cached_tokens = request.computed = min(cached, request.prompt_tokens - 1)
        self._prefilling.append(request)
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
        """Seconds of the first `steps` of the run; every context grows by one token from step to step."""
        context = steps * self._run_context + self._run_size * (steps * (steps - 1) // 2)
        return steps * self._run_flat_s + self._step.decode_s(context)

    def _shorten_run(self, now: float) -> None:
        """End the run with the present step, because the batch has to be decided anew."""
        if self._chunks or self._run_steps <= 1:
            return
        # Seconds of k steps are a k^2 + b k.
        a = self._step.decode_s(self._run_size) / 2
        b = self._run_flat_s + self._step.decode_s(self._run_context) - a
        passed_s = now - self._run_start
        root = (math.sqrt(b * b + 4 * a * passed_s) - b) / (2 * a) if a else passed_s / b
        steps = max(1, math.ceil(root))
        # Rounding may have put `steps` on the wrong side of a boundary.
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
            request = heapq.heappop(decoding)[2]
            if not request.is_cancelled:
                self._num_decoding -= 1
                self._context -= request.prompt_tokens + request.output_tokens
                self._finish(request, end)
                changed.append(request)
        chunks, self._chunks = self._chunks, []
        for request, size in chunks:
            if not request.is_cancelled:
                self._computed(request, size, end, changed)

    def _computed(self, request: ReplicaRequest, size: int, end: float, changed: list[ReplicaRequest]) -> None:
        lease = request.lease
        assert lease is not None, "it is in the batch"
        before, request.computed = request.computed, request.computed + size
        block_tokens = self._model.block_tokens
        self.cache.publish(lease, request.blocks[before // block_tokens : request.computed // block_tokens])
        if request.computed < request.prompt_tokens:
            return
        # Requests are prefilled in order, so those before it were completed in this step or earlier.
        self._prefilling.remove(request)
        request.first_token_at = end
        changed.append(request)
        if request.output_tokens == 1:
            self._finish(request, end)
            return
        request.finish_count = self._count + request.output_tokens - 1
        self._num_joined += 1
        heapq.heappush(self._decoding, (request.finish_count, self._num_joined, request))
        self._num_decoding += 1
        self._context += request.prompt_tokens + 1

    def _finish(self, request: ReplicaRequest, end: float) -> None:
        request.finished_at = end
        assert request.lease is not None, "it is in the batch"
        self.cache.release(request.lease)
