"""An engine around the real scheduler whose model is a checksum over a simulated KV memory.

The next token depends on every token read through the page table, and every read is compared with what the sequence
must find there: a page shared, evicted, restored or overwritten wrongly fails at once.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import Any
from zlib import crc32

from backends.engine.errors import EngineError
from backends.engine.kv.pages import PagePool, pages_for
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence, Slice, State
from backends.engine.step.plan import Plan, Transfers
from backends.engine.step.scheduler import Scheduler
from kernels.paging import PAGE_SIZE

VOCABULARY = 50
Cell = tuple[str | None, bytes, int, int]
"""What a slot holds: adapter, salt, position, token."""


def make_sequence(prompt: list[int], *, order: int = 0, index: int = 0, **request: Any) -> Sequence:
    """A new sequence; `request` are further fields of its Request."""
    whole = Request(id=f"r{order}", prompt=tuple(prompt), **request)
    return Sequence(request=whole, index=index, order=order, tokens=list(prompt), seed=order)


def answering(max_tokens: int) -> SamplingParams:
    """Parameters of an answer of that many tokens."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def numbers(count: int, seed: int = 0) -> list[int]:
    """A prompt of `count` tokens; those of one seed begin alike."""
    random = Random(seed)
    return [random.randrange(VOCABULARY) for _ in range(count)]


def next_token(tokens: list[int]) -> int:
    """What the model says after `tokens`."""
    return crc32(array("I", tokens).tobytes()) % VOCABULARY


def expected_answer(prompt: tuple[int, ...], count: int) -> list[int]:
    """What the model says after `prompt`, computed without pages."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class PagedMemory:
    """The slots of a pool's pages, on the device and on the host."""

    def __init__(self, num_pages: int, host_pages: int) -> None:
        self._device: list[list[Cell | None]] = [[None] * PAGE_SIZE for _ in range(num_pages)]
        self._host: list[list[Cell | None]] = [[None] * PAGE_SIZE for _ in range(host_pages)]

    def transfer(self, transfers: Transfers) -> None:
        """As KVCache.transfer."""
        for page, host_page in transfers.to_host:
            self._host[host_page] = list(self._device[page])
        for host_page, page in transfers.to_device:
            self._device[page] = list(self._host[host_page])

    def write(self, sequence: Sequence, start: int, tokens: list[int]) -> None:
        """Stores the cells of `tokens` at the positions from `start` on."""
        for position, token in enumerate(tokens, start):
            page = sequence.pages[position // PAGE_SIZE]
            self._device[page][position % PAGE_SIZE] = _cell(sequence, position, token)

    def check(self, sequence: Sequence, tokens: list[int]) -> None:
        """Asserts that the sequence's pages begin with exactly `tokens`, its own."""
        for start in range(0, len(tokens), PAGE_SIZE):
            part = tokens[start : start + PAGE_SIZE]
            found = self._device[sequence.pages[start // PAGE_SIZE]][: len(part)]
            assert found == [_cell(sequence, position, token) for position, token in enumerate(part, start)]


class PagedEngine:
    """Steps the scheduler, checks every plan, and answers with `next_token`."""

    def __init__(
        self,
        num_pages: int,
        *,
        host_pages: int = 0,
        max_batch_tokens: int = 128,
        max_sequences: int = 4,
        max_context: int = 1024,
    ) -> None:
        self.pool = PagePool(num_pages, host_pages=host_pages, fingerprint=b"model")
        self.scheduler = Scheduler(
            self.pool, max_batch_tokens=max_batch_tokens, max_sequences=max_sequences, max_context=max_context
        )
        self.memory = PagedMemory(num_pages, host_pages)
        self.alive: list[Sequence] = []
        self.answers: dict[int, list[int]] = {}
        self.failures: dict[int, EngineError] = {}
        self.computed: dict[int, int] = {}
        """Prompt tokens computed, by order: what no cache hit has spared."""
        self._limits = (max_batch_tokens, max_sequences, max_context)
        self._random = Random(0)

    def add(self, prompt: list[int], *, order: int, max_tokens: int = 1, **request: Any) -> Sequence:
        """Queues a request for `max_tokens` tokens."""
        sequence = make_sequence(prompt, order=order, params=answering(max_tokens), **request)
        self.alive.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Aborts a sequence in whatever state."""
        self.alive.remove(sequence)
        self.scheduler.abort(sequence)

    def step(self, draft_room: int = 0) -> Plan:
        """One step; drafts are right or wrong at random, and some rooms stay empty."""
        plan = self.scheduler.schedule(draft_room)
        self._check(plan, draft_room)
        self.memory.transfer(plan.transfers)
        for part in plan.slices:
            self.memory.check(part.sequence, part.sequence.tokens[: part.start])
        for part in plan.slices:
            self._propose(part)
            known = part.sequence.tokens[part.start : part.start + part.num_tokens]
            self.memory.write(part.sequence, part.start, known + part.sequence.draft)
        for part in plan.slices:
            self._postprocess(part)
        for sequence, error in plan.failed:
            self.failures[sequence.order] = error
            self.alive.remove(sequence)
        self.check_pool()
        return plan

    def run(self, *, max_steps: int = 10_000, draft_room: int = 0) -> int:
        """Steps until no work is left; returns how many it took."""
        for count in range(max_steps):
            if not self.scheduler.has_work:
                return count
            self.step(draft_room)
        raise AssertionError(f"work left after {max_steps} steps")

    def check_pool(self) -> None:
        """Asserts that the page tables account for every page in use."""
        self.pool.check_integrity([sequence.pages for sequence in self.alive])

    def _check(self, plan: Plan, draft_room: int) -> None:
        max_batch_tokens, max_sequences, max_context = self._limits
        assert sum(part.num_tokens + part.num_draft for part in plan.slices) <= max_batch_tokens
        assert len({id(part.sequence) for part in plan.slices}) == len(plan.slices)
        assert sum(sequence.state is State.RUNNING for sequence in self.alive) <= max_sequences
        assert plan.slices or plan.failed or not self.scheduler.has_work
        for part in plan.slices:
            sequence = part.sequence
            end = part.start + part.num_tokens
            assert sequence.state is State.RUNNING
            assert part.start == sequence.num_computed
            assert part.num_tokens > 0
            assert part.samples == (end == len(sequence.tokens))
            assert len(sequence.pages) >= pages_for(end + part.num_draft)
            assert part.num_draft <= draft_room
            assert not part.num_draft or (part.num_tokens == 1 and end + part.num_draft < max_context)

    def _propose(self, part: Slice) -> None:
        tokens = list(part.sequence.tokens)
        for _ in range(self._random.randint(0, part.num_draft)):
            right = next_token(tokens)
            tokens.append(right if self._random.random() < 0.7 else (right + 1) % VOCABULARY)
        part.sequence.draft = tokens[len(part.sequence.tokens) :]

    def _postprocess(self, part: Slice) -> None:
        sequence = part.sequence
        request = sequence.request
        fresh = min(part.start + part.num_tokens, sequence.num_prompt) - part.start
        self.computed[sequence.order] = self.computed.get(sequence.order, 0) + max(fresh, 0)
        chosen: list[int] = []
        if part.samples:
            self.memory.check(sequence, sequence.tokens + sequence.draft)
            if request.pooling is None:
                chosen = self._verify(sequence)
        self.scheduler.commit(part, chosen)
        max_tokens = request.params.max_tokens or 0
        is_full = len(sequence.tokens) >= self._limits[2]
        if part.samples and (request.pooling is not None or sequence.num_output >= max_tokens or is_full):
            self.answers[sequence.order] = sequence.tokens[sequence.num_prompt :]
            self.scheduler.finish(sequence)
            self.alive.remove(sequence)

    def _verify(self, sequence: Sequence) -> list[int]:
        limit = min(sequence.request.params.max_tokens or 1, self._limits[2] - sequence.num_prompt)
        tokens = list(sequence.tokens)
        for proposed in [*sequence.draft, None]:
            tokens.append(next_token(tokens))
            if tokens[-1] != proposed:
                break
        return tokens[len(sequence.tokens) : sequence.num_prompt + limit]


def _cell(sequence: Sequence, position: int, token: int) -> Cell:
    return (sequence.request.adapter, sequence.request.salt, position, token)
