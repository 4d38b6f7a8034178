"""Page names, the pool, its host tier, and all of it under random loads against a simulated memory."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from backends.engine.kv.block_hash import extend_chain, seed_hash
from backends.engine.kv.pages import PagePool, Prefix, pages_for
from backends.engine.sequence import Sequence
from backends.engine.step.plan import Transfers
from kernels.paging import PAGE_SIZE
from tests.support.engine.paged_engine import PagedEngine, expected_answer, make_sequence, numbers

_SEED = seed_hash(b"model", None, b"")


def _chain(num_pages: int, seed: int = 0) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, _SEED, numbers(num_pages * PAGE_SIZE, seed), num_pages)
    return chain


def _fill(pool: PagePool, chain: list[bytes]) -> list[int]:
    """Pages that hold the contents of `chain`, in use."""
    pages = pool.allocate(len(chain))
    for page, name in zip(pages, chain, strict=True):
        pool.name(page, name)
    return pages


def _cache(pool: PagePool, chain: list[bytes]) -> list[int]:
    """Pages that hold the contents of `chain`, idle."""
    pages = _fill(pool, chain)
    pool.release(reversed(pages))
    return pages


@pytest.mark.parametrize(("num_tokens", "num_pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (1000, 16)])
def test_pages_for_tokens_rounds_up(num_tokens: int, num_pages: int) -> None:
    """The last page may be partly used."""
    assert pages_for(num_tokens) == num_pages


def test_block_hash_chain_extended_in_parts_equals_the_whole() -> None:
    """A chain is computed as far as it is needed, and continued."""
    tokens = numbers(5 * PAGE_SIZE + 3)
    parts: list[bytes] = []
    for num_blocks in (1, 1, 3, 5):
        extend_chain(parts, _SEED, tokens, num_blocks)
    whole: list[bytes] = []
    extend_chain(whole, _SEED, tokens, 5)

    assert parts == whole
    assert len(set(whole)) == 5


def test_block_hash_same_page_after_another_start_has_another_name() -> None:
    """A name covers everything before the page, since its keys and values depend on it."""
    same = numbers(PAGE_SIZE, 1)
    names: list[list[bytes]] = [[], []]
    for chain, start in zip(names, (2, 3), strict=True):
        extend_chain(chain, _SEED, numbers(PAGE_SIZE, start) + same, 2)

    assert names[0][1] != names[1][1]


def test_block_hash_seeds_of_other_model_adapter_or_salt_differ() -> None:
    """No two tenants share names, wherever the border between the parts lies."""
    parts = [
        (b"m", None, b""),
        (b"m", "", b""),
        (b"m", None, b"m"),
        (b"m", "m", b""),
        (b"mm", None, b""),
        (b"", "m", b"m"),
        (b"", None, b"mm"),
        (b"m", None, b"adapter m"),
    ]

    assert len({seed_hash(*part) for part in parts}) == len(parts)


def test_pool_released_pages_are_found_and_shared_again() -> None:
    """Contents outlive their sequence until the room is needed."""
    pool = PagePool(4)
    chain = _chain(3)
    pages = _cache(pool, chain)

    found = pool.find([*chain, b"unknown"])
    shared = [pool.share(chain), pool.share(chain[:2])]

    assert found == Prefix(num_pages=3, num_idle=3)
    assert shared == [pages, pages[:2]]
    assert pool.find(chain) == Prefix(num_pages=3, num_idle=0)
    assert pool.num_available == 1
    pool.check_integrity(shared)


def test_pool_blank_pages_go_before_cached_ones() -> None:
    """Nothing is evicted while a page without contents is left."""
    pool = PagePool(4)
    cached = _cache(pool, _chain(2))

    assert not set(pool.allocate(2)) & set(cached)
    assert pool.statistics().num_evictions == 0


def test_pool_eviction_takes_the_longest_unused_and_the_end_of_a_chain_first() -> None:
    """A chain shrinks from its end; one that was used again outlives one that was not."""
    pool = PagePool(6)
    old, new = _chain(3, 0), _chain(3, 1)
    _cache(pool, old)
    _cache(pool, new)
    pool.release(reversed(pool.share(old)))

    found = []
    for _ in range(6):
        pool.allocate(1)
        found.append((pool.find(new).num_pages, pool.find(old).num_pages))

    assert found == [(2, 3), (1, 3), (0, 3), (0, 2), (0, 1), (0, 0)]


def test_pool_second_page_of_the_same_contents_stays_nameless() -> None:
    """Identical pages are not merged: the second is blank as soon as it is released."""
    pool = PagePool(2)
    chain = _chain(1)
    first, second = _fill(pool, chain), _fill(pool, chain)

    pool.release(first)
    pool.release(second)

    assert pool.statistics().num_cached == 1
    assert pool.share(chain) == first
    pool.check_integrity([first])


def test_pool_evicted_contents_return_from_the_host() -> None:
    """What was evicted with a host tier is found, and copied back into a page of its own."""
    pool = PagePool(2, host_pages=2)
    chain = _chain(2)
    old = _cache(pool, chain)
    taken = pool.allocate(2)
    out = pool.take_transfers()
    pool.release(taken)

    found = pool.find(chain)
    shared = pool.share(chain)
    back = pool.take_transfers()

    assert sorted(page for page, _ in out.to_host) == sorted(old)
    assert found == Prefix(num_pages=2, num_idle=2)
    host_page_of = dict(out.to_host)
    assert back == Transfers(to_device=tuple((host_page_of[p], q) for p, q in zip(old, shared, strict=True)))
    assert pool.statistics().num_host_hits == 2


def test_pool_contents_still_on_the_host_are_evicted_without_a_copy() -> None:
    """A page brought back keeps its host copy, which is as good the next time."""
    pool = PagePool(1, host_pages=1)
    chain = _chain(1)
    _cache(pool, chain)
    for pages in (pool.allocate(1), pool.share(chain) if pool.num_available else []):
        pool.release(pages)
    pool.release(pool.share(chain))
    pool.take_transfers()

    pool.allocate(1)

    assert pool.take_transfers() == Transfers()
    assert pool.find(chain).num_pages == 1


def test_pool_host_page_read_in_a_step_is_not_overwritten_in_it() -> None:
    """An eviction that would reuse a host page of this step's copies drops its contents instead."""
    pool = PagePool(2, host_pages=1)
    wanted, other = _chain(1, 0), _chain(1, 1)
    _cache(pool, wanted)
    pool.release(pool.allocate(2))
    _cache(pool, other)
    pool.release(pool.allocate(1))
    pool.take_transfers()
    assert pool.find(wanted).num_pages == 1

    shared = pool.share(wanted)
    pool.allocate(1)

    assert pool.take_transfers() == Transfers(to_device=((0, shared[0]),))
    assert pool.find(other).num_pages == 0
    assert pool.find(wanted).num_pages == 1


def test_pool_full_host_tier_drops_its_longest_unused() -> None:
    """The host tier is a cache too."""
    pool = PagePool(1, host_pages=2)
    chains = [_chain(1, seed) for seed in range(4)]
    for chain in chains:
        pool.release(_fill(pool, chain))
        pool.take_transfers()

    assert [pool.find(chain).num_pages for chain in chains] == [0, 1, 1, 1]
    assert pool.statistics().num_host_used == 2


_MAX_CONTEXT = 330
_LENGTHS = st.sampled_from([1, 2, 63, 64, 65, 127, 128, 129, 200, 300])
_KINDS = st.sampled_from([{}, {}, {}, {"pooling": "mean"}, {"pooling": "last"}, {"prompt_logprobs": 0}])


class EngineUnderLoad(RuleBasedStateMachine):
    """Random requests, steps and aborts; each plan, each read of a page and each answer is checked."""

    sequences: Bundle[Sequence] = Bundle("sequences")

    @initialize(
        num_pages=st.integers(2, 12),
        host_pages=st.sampled_from([0, 0, 1, 3, 20]),
        max_batch_tokens=st.sampled_from([1, 5, 64, 100, 500]),
        max_sequences=st.integers(1, 5),
    )
    def start(self, num_pages: int, host_pages: int, max_batch_tokens: int, max_sequences: int) -> None:
        self.engine = PagedEngine(
            num_pages,
            host_pages=host_pages,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            max_context=_MAX_CONTEXT,
        )
        self.added: list[Sequence] = []
        self.aborted: set[int] = set()

    @rule(
        target=sequences,
        length=_LENGTHS,
        seed=st.integers(0, 1),
        max_tokens=st.sampled_from([1, 3, 30, 100]),
        salt=st.sampled_from([b"", b"", b"tenant"]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        kind=_KINDS,
    )
    def add(
        self, length: int, seed: int, max_tokens: int, salt: bytes, priority: int, kind: dict[str, object]
    ) -> Sequence:
        order = len(self.added)
        sequence = self.engine.add(
            numbers(length, seed), order=order, max_tokens=max_tokens, salt=salt, priority=priority, **kind
        )
        self.added.append(sequence)
        return sequence

    @rule(count=st.integers(1, 12), draft_room=st.sampled_from([0, 0, 1, 4]))
    def steps(self, count: int, draft_room: int) -> None:
        for _ in range(count):
            self.engine.step(draft_room)

    @rule(sequence=consumes(sequences))
    def abort(self, sequence: Sequence) -> None:
        if sequence in self.engine.alive:
            self.engine.abort(sequence)
            self.aborted.add(sequence.order)

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_pool()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        assert self.engine.pool.num_available == self.engine.pool.num_pages
        for sequence in self.added:
            request = sequence.request
            wanted = 0 if request.pooling else min(request.params.max_tokens or 0, _MAX_CONTEXT - sequence.num_prompt)
            if sequence.order in self.aborted:
                continue
            if sequence.order in self.engine.failures:
                num_tokens = sequence.num_prompt + wanted
                assert pages_for(num_tokens) > self.engine.pool.num_pages
            else:
                assert self.engine.answers[sequence.order] == expected_answer(request.prompt, wanted)


EngineUnderLoad.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None, derandomize=True)
test_pool_under_random_load_reads_only_what_was_written = EngineUnderLoad.TestCase


def test_pool_after_ten_thousand_random_requests_has_no_page_in_use() -> None:
    """No leak: with aborts in every state, all pages and all bookkeeping are back where they were."""
    random = Random(1)
    engine = PagedEngine(30, host_pages=10, max_batch_tokens=256, max_sequences=16)
    scheduler = engine.scheduler
    alive: list[Sequence] = []
    for order in range(10_000):
        prompt = numbers(random.choice([1, 60, 65, 130, 200]), random.randrange(30))
        alive.append(make_sequence(prompt, order=order, priority=random.randrange(3)))
        scheduler.add(alive[-1])
        while len(alive) > 24:
            if random.random() < 0.2:
                scheduler.abort(alive.pop(random.randrange(len(alive))))
            for part in scheduler.schedule(draft_room=12).slices:
                if random.random() < 0.005:
                    scheduler.abort(part.sequence)
                tokens = [random.randrange(50) for _ in range(random.randint(0, part.num_draft) + 1)]
                scheduler.commit(part, tokens if part.samples else [])
                if random.random() < 0.07 and part.samples:
                    scheduler.finish(part.sequence)
            alive = [sequence for sequence in alive if sequence.state.value != "finished"]
    for sequence in alive:
        scheduler.abort(sequence)

    statistics = scheduler.statistics()
    engine.pool.check_integrity([])
    assert not scheduler.has_work
    assert (statistics.num_running, statistics.num_waiting, statistics.pool.num_used) == (0, 0, 0)
    assert statistics.num_preemptions > 0
    assert statistics.pool.num_host_hits > 0
