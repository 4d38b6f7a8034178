"""Which sequences run in a step, how far, and on which pages. One queue, no phases.

A sequence wants its known tokens computed. A step has room for `max_batch_tokens`: sequences that decode (one token
each) go first, then running prompts, then waiting sequences, each in order of priority and arrival; drafts get what
is left. A step's plan is carried out and every slice committed before the next is made.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from backends.engine.errors import EngineError, OutOfMemory, RequestRefused
from backends.engine.kv.block_hash import extend_chain, seed_hash
from backends.engine.kv.pages import PagePool, PoolStatistics, pages_for
from backends.engine.sequence import Sequence, Slice, State
from backends.engine.step.plan import Plan
from kernels.paging import PAGE_SIZE

_HELD_SHARE = 0.1
"""Of all pages, what sequences between two rounds may keep together."""
_LOOKAHEAD = 16
"""Waiting sequences that may be passed over in a step, while another computes their prefix."""


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Sequences now, and events since the start. Of `queried_tokens` prompt tokens admitted for the first time,
    `hit_tokens` came from the prefix cache.
    """

    num_running: int
    num_waiting: int
    num_held: int
    num_preemptions: int
    queried_tokens: int
    hit_tokens: int
    pool: PoolStatistics


class Scheduler:
    """Hands out the tokens and pages of each step.

    A sequence gets the pages of all its known tokens when it is admitted, and a further one when it grows into it.
    When none is left, the running sequence of the lowest priority that came last gives its pages up and waits again;
    what it computed stays in the pool as long as nobody needs the room, so that resuming is mostly a prefix hit.

    `max_batch_tokens` per step, drafts included; `max_sequences` running at once; `max_context` tokens per sequence.
    Sequences that are held between two rounds are in no step, and the first to give their pages up.
    With max_context <= pool.num_pages * PAGE_SIZE no sequence ever fails for want of pages.
    """

    def __init__(self, pool: PagePool, *, max_batch_tokens: int, max_sequences: int, max_context: int) -> None:
        self._pool = pool
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        self._max_context = max_context
        # Both in order of rank.
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._preempted: set[Sequence] = set()
        # Who was held first comes first.
        self._held: dict[Sequence, None] = {}
        self._num_preemptions = self._queried_tokens = self._hit_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._running or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence. What can never run fails in the plan of the step that would have admitted it."""
        insort(self._waiting, sequence, key=_rank)

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out, whatever its state; its pages are free at once. Does nothing the second time."""
        if sequence.state is State.FINISHED:
            return
        if sequence.state is State.RUNNING:
            self._running.remove(sequence)
        elif sequence.state is State.HELD:
            del self._held[sequence]
        else:
            self._waiting.remove(sequence)
            self._preempted.discard(sequence)
        sequence.state = State.FINISHED
        self._free(sequence)

    def abort(self, sequence: Sequence) -> None:
        """`finish`, for a sequence that has not ended. A slice of it that is still to be committed is ignored."""
        self.finish(sequence)

    def hold(self, sequence: Sequence) -> None:
        """Takes a running sequence out of the steps to come, until `go_on`. It keeps its pages for as long as nobody
        needs them, and those who are held have no more than a tenth of all.
        """
        self._running.remove(sequence)
        sequence.state = State.HELD
        self._held[sequence] = None
        while sum(len(held.pages) for held in self._held) > max(1, int(_HELD_SHARE * self._pool.num_pages)):
            self._give_up_held()

    def go_on(self, sequence: Sequence) -> None:
        """Ends a hold: the sequence is in the next step, or waits where its pages or its place are gone."""
        if sequence.state is not State.HELD:
            return
        del self._held[sequence]
        if sequence.pages and len(self._running) < self._max_sequences:
            sequence.state = State.RUNNING
            insort(self._running, sequence, key=_rank)
            return
        self._take_pages(sequence)
        self._wait_again(sequence)

    def schedule(self, draft_room: int = 0) -> Plan:
        """The next step. Sequences that decode get room for up to `draft_room` draft tokens each, pages included,
        where budget and pages are left over; they never run past the context, all drafts accepted and one more.
        """
        slices: list[Slice] = []
        failed: list[tuple[Sequence, EngineError]] = []
        num_preemptions = self._num_preemptions
        budget = self._continue_decodes(slices, failed, self._max_batch_tokens)
        budget = self._continue_prompts(slices, budget)
        # Who has just lost its pages must not fetch them back in the same step.
        if self._waiting and self._num_preemptions == num_preemptions:
            budget = self._admit(slices, failed, budget)
        if draft_room:
            self._grant_drafts(slices, draft_room, budget)
        return Plan(tuple(slices), self._pool.take_transfers(), tuple(failed))

    def commit(self, slice: Slice, tokens: list[int]) -> None:
        """Records that `slice` was computed and `tokens` chosen: accepted drafts and one more, or none at all where
        nothing was sampled. Pages that are now full of known tokens can be found by others from here on.
        """
        sequence = slice.sequence
        if sequence.state is not State.RUNNING:
            return
        assert slice.start == sequence.num_computed
        assert len(tokens) <= slice.num_draft + 1
        num_computed = slice.start + slice.num_tokens
        if tokens:
            num_computed += len(tokens) - 1
            sequence.tokens += tokens
        sequence.num_computed = num_computed
        sequence.draft.clear()
        first, last = slice.start // PAGE_SIZE, num_computed // PAGE_SIZE
        if first < last:
            names = self._chain(sequence, last)[first:]
            for page, name in zip(sequence.pages[first:last], names, strict=True):
                self._pool.name(page, name)

    def statistics(self) -> SchedulerStatistics:
        """The scheduler and its pool at this moment."""
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_held=len(self._held),
            num_preemptions=self._num_preemptions,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            pool=self._pool.statistics(),
        )

    def _continue_decodes(self, slices: list[Slice], failed: list[tuple[Sequence, EngineError]], budget: int) -> int:
        """Slices for running sequences that want one token; returns the budget left. Goes before prompts, so that no
        prompt stalls an answer, and before every admission, so that nobody scheduled is preempted.
        """
        index = 0
        while index < len(self._running) and budget:
            sequence = self._running[index]
            num_tokens = len(sequence.tokens)
            if num_tokens - sequence.num_computed != 1:
                index += 1
                continue
            missing = pages_for(num_tokens) - len(sequence.pages)
            if missing > 0:
                error = self._refusal(sequence)
                if error is not None:
                    self.finish(sequence)
                    failed.append((sequence, error))
                    continue
                if not self._make_room(sequence, missing):
                    break
                sequence.pages += self._pool.allocate(missing)
            slices.append(Slice(sequence, num_tokens - 1, 1, 0, True))
            budget -= 1
            index += 1
        return budget

    def _continue_prompts(self, slices: list[Slice], budget: int) -> int:
        """Slices for running sequences that want more than one token. Their pages are theirs since admission."""
        for sequence in self._running:
            if budget and len(sequence.tokens) - sequence.num_computed > 1:
                slices.append(_prompt_slice(sequence, budget))
                budget -= slices[-1].num_tokens
        return budget

    def _admit(self, slices: list[Slice], failed: list[tuple[Sequence, EngineError]], budget: int) -> int:
        """Starts waiting sequences, first come first served, while tokens, pages and places are left.

        One whose next page is being computed by this very step is passed over: the next step shares that page.
        """
        computing = {name for part in slices for name in _names(part)}
        index = 0
        while budget and index < min(len(self._waiting), _LOOKAHEAD) and len(self._running) < self._max_sequences:
            sequence = self._waiting[index]
            error = self._refusal(sequence)
            if error is not None:
                self.finish(sequence)
                failed.append((sequence, error))
                continue
            chain = self._chain(sequence, _num_reusable(sequence))
            prefix = self._pool.find(chain)
            if prefix.num_pages < len(chain) and chain[prefix.num_pages] in computing:
                index += 1
                continue
            num_own = pages_for(len(sequence.tokens)) - prefix.num_pages
            # A free page for each running sequence to grow into, or they would soon preempt the newcomer.
            if prefix.num_idle + num_own + len(self._running) > self._pool.num_available:
                if self._give_up_held():
                    continue
                break
            self._start(sequence, chain[: prefix.num_pages], num_own)
            slices.append(_prompt_slice(sequence, budget))
            budget -= slices[-1].num_tokens
            computing.update(_names(slices[-1]))
        return budget

    def _grant_drafts(self, slices: list[Slice], draft_room: int, budget: int) -> None:
        """Widens the slices that decode by room for drafts, in order. Takes no page from a running sequence."""
        for index, part in enumerate(slices):
            sequence = part.sequence
            if part.num_tokens > 1 or not part.samples or not sequence.num_output:
                continue
            num_tokens = len(sequence.tokens)
            room = min(draft_room, budget, self._max_context - num_tokens - 1)
            missing = min(pages_for(num_tokens + room) - len(sequence.pages), self._pool.num_available)
            if missing > 0:
                sequence.pages += self._pool.allocate(missing)
            room = min(room, len(sequence.pages) * PAGE_SIZE - num_tokens)
            if room > 0:
                slices[index] = Slice(sequence, part.start, 1, room, True)
                budget -= room

    def _start(self, sequence: Sequence, chain: list[bytes], num_own: int) -> None:
        """Moves a waiting sequence to the running ones: the pages of `chain` shared, `num_own` more for itself."""
        sequence.pages += self._pool.share(chain)
        sequence.pages += self._pool.allocate(num_own)
        sequence.num_computed = len(chain) * PAGE_SIZE
        sequence.state = State.RUNNING
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_rank)
        if sequence in self._preempted:
            self._preempted.remove(sequence)
        else:
            # Of an answer that goes on, its own tokens may be cached too.
            sequence.num_cached = min(sequence.num_computed, sequence.num_prompt)
            self._queried_tokens += sequence.num_prompt
            self._hit_tokens += sequence.num_cached

    def _make_room(self, sequence: Sequence, num_pages: int) -> bool:
        """Preempts from the end until `num_pages` are available; False where `sequence` itself had to go."""
        while self._pool.num_available < num_pages:
            if self._give_up_held():
                continue
            victim = self._running.pop()
            self._take_pages(victim)
            self._wait_again(victim)
            self._num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _give_up_held(self) -> bool:
        """Takes the pages of who was held first, of those that have some; False where nobody has."""
        for sequence in self._held:
            if sequence.pages:
                self._take_pages(sequence)
                return True
        return False

    def _take_pages(self, sequence: Sequence) -> None:
        self._free(sequence)
        sequence.num_computed = sequence.num_drafted = 0

    def _wait_again(self, sequence: Sequence) -> None:
        sequence.state = State.WAITING
        insort(self._waiting, sequence, key=_rank)
        self._preempted.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self._pool.release(reversed(sequence.pages))
        sequence.pages.clear()
        sequence.draft.clear()

    def _refusal(self, sequence: Sequence) -> EngineError | None:
        """Why `sequence` could not run even alone, if so."""
        num_tokens = len(sequence.tokens)
        if not num_tokens:
            return RequestRefused("the prompt is empty; send at least one token", param="prompt")
        if num_tokens > self._max_context:
            return RequestRefused(
                f"{num_tokens} tokens exceed the context of {self._max_context}; shorten the prompt",
                param="prompt",
                code="context_length_exceeded",
            )
        if pages_for(num_tokens) > self._pool.num_pages:
            return OutOfMemory(
                f"{num_tokens} tokens need {pages_for(num_tokens)} KV pages and there are {self._pool.num_pages}; "
                "shorten the prompt, or give the cache more memory"
            )
        return None

    def _chain(self, sequence: Sequence, num_pages: int) -> list[bytes]:
        """The names of the first `num_pages` pages of `sequence`, computed once."""
        names = sequence.block_hashes
        if len(names) < num_pages:
            request = sequence.request
            seed = seed_hash(self._pool.fingerprint, request.adapter, request.salt)
            extend_chain(names, seed, sequence.tokens, num_pages)
        return names[:num_pages]


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return (sequence.request.priority, sequence.order, sequence.index)


def _prompt_slice(sequence: Sequence, budget: int) -> Slice:
    """As much as the budget allows. A chunk that is not the last ends with a page if it reaches one: chunks after a
    prefix hit then are those of a miss, and round the same.
    """
    start, num_tokens = sequence.num_computed, len(sequence.tokens)
    end = min(num_tokens, start + budget)
    if end < num_tokens:
        aligned = end // PAGE_SIZE * PAGE_SIZE
        end = aligned if aligned > start else end
    return Slice(sequence, start, end - start, 0, end == num_tokens)


def _num_reusable(sequence: Sequence) -> int:
    """Pages that may come from the prefix cache. The last token is always computed: its logits are wanted, and those
    of every prompt position that is to be scored or pooled.
    """
    limit = len(sequence.tokens) - 1
    request = sequence.request
    if request.pooling == "mean":
        return 0
    if request.prompt_logprobs is not None and not sequence.num_output:
        limit = min(limit, max(request.prompt_logprobs_from - 1, 0))
    return limit // PAGE_SIZE


def _names(part: Slice) -> list[bytes]:
    """The names of the pages that `part` fills, as far as they are computed."""
    return part.sequence.block_hashes[part.start // PAGE_SIZE : (part.start + part.num_tokens) // PAGE_SIZE]
