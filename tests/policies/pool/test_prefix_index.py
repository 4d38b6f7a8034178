"""The prefix index against a plain model of it, its bound, and what its hashes stand for."""

from __future__ import annotations

import tracemalloc
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.prefix_index import PrefixIndex


class Oracle:
    """The same, as slowly as it is simple: a list per replica, most recently used last."""

    def __init__(self) -> None:
        self.held: dict[int, list[tuple[str, int]]] = {}
        self.capacity: dict[int, int] = {}

    def add(self, slot: int, capacity: int) -> None:
        """A new replica."""
        self.held[slot], self.capacity[slot] = [], capacity

    def store(self, slot: int, blocks: list[str], sizes: list[int]) -> None:
        """A replica uses blocks."""
        held = self.held[slot]
        for block, size in reversed(list(zip(blocks, sizes, strict=True))):
            held[:] = [kept for kept in held if kept[0] != block]
            held.append((block, size))
        self.trim(slot)

    def trim(self, slot: int) -> None:
        """Forget what is too much, the oldest first."""
        held = self.held[slot]
        while sum(size for _, size in held) > self.capacity[slot]:
            del held[0]

    def depth(self, slot: int, blocks: list[str]) -> int:
        """How many of the first blocks are held."""
        names = {block for block, _ in self.held[slot]}
        return next((place for place, block in enumerate(blocks) if block not in names), len(blocks))


def _chain(text: str) -> list[str]:
    """Blocks of one letter, each named by all before it too."""
    return [text[: end + 1] for end in range(len(text))]


WORDS = st.text("ab", max_size=6)
STEPS = st.one_of(
    st.tuples(st.just("store"), st.integers(0, 3), WORDS),
    st.tuples(st.just("match"), st.integers(0, 3), WORDS),
    st.tuples(st.just("resize"), st.integers(0, 3), st.integers(0, 40)),
    st.tuples(st.just("replace"), st.integers(0, 3), st.integers(0, 40)),
)


@given(st.lists(STEPS, max_size=60))
def test_prefix_index_is_an_lru_per_replica(steps: list[tuple[str, int, str | int]]) -> None:
    """After any steps it knows what a list per replica knows: depths, blocks held, and never more than fits."""
    index, oracle = PrefixIndex(), Oracle()
    slots = [index.add(10 * (place + 1)) for place in range(4)]
    seen: set[str] = set()
    for place, slot in enumerate(slots):
        oracle.add(slot, 10 * (place + 1))
    for action, place, what in steps:
        slot = slots[place]
        if isinstance(what, int):
            if action == "replace":
                index.remove(slot)
                slots[place] = slot = index.add(what)
                oracle.add(slot, what)
            else:
                index.resize(slot, what)
                oracle.capacity[slot] = what
                oracle.trim(slot)
            continue
        blocks = _chain(what)
        seen.update(blocks)
        sizes = [3 + depth for depth in range(len(blocks))]
        if action == "store":
            index.store(slot, [hash(block) for block in blocks], list(accumulate(sizes)))
            oracle.store(slot, blocks, sizes)
        found = index.match([hash(block) for block in blocks])
        expected = {slot: oracle.depth(slot, blocks) for slot in oracle.held}
        assert found == {slot: depth for slot, depth in expected.items() if depth}
        for slot in slots:
            names = {block for block, _ in oracle.held[slot]}
            assert {block for block in seen if slot in index.match([hash(block)])} == names
            assert index.num_blocks(slot) == len(names)


def test_prefix_index_forgets_the_end_of_a_prompt_before_its_beginning() -> None:
    """A beginning without its end is worth something, an end without its beginning nothing."""
    index = PrefixIndex()
    slot = index.add(3)
    index.store(slot, [1, 2, 3], [1, 2, 3])
    index.store(slot, [9], [1])

    assert index.match([1, 2, 3]) == {slot: 2}


def test_prefix_index_without_room_holds_nothing() -> None:
    """A replica whose cache is switched off."""
    index = PrefixIndex()
    slot = index.add(0)
    index.store(slot, [1, 2], [64, 128])

    assert index.match([1, 2]) == {}
    assert index.match([]) == {}


def test_prefix_index_walks_for_many_replicas_at_once() -> None:
    """A hundred replicas of different depths."""
    index = PrefixIndex()
    slots = [index.add(1000) for _ in range(100)]
    blocks = list(range(100, 200))
    for depth, slot in enumerate(slots):
        index.store(slot, blocks[:depth], list(range(1, depth + 1)))

    assert index.match(blocks) == {slot: depth for depth, slot in enumerate(slots) if depth}


@pytest.mark.parametrize("num_prompts", [60_000])
def test_prefix_index_unique_prompts_fill_it_to_its_bound_and_no_further(num_prompts: int) -> None:
    """Prompts that nobody repeats: what is held is what the caches hold together, and memory stops growing."""
    index = PrefixIndex()
    slots = [index.add(64 * 1000) for _ in range(4)]
    tracemalloc.start()
    sizes = []
    for number in range(num_prompts):
        index.store(slots[number % 4], [number * 2, number * 2 + 1], [64, 128])
        if number in (num_prompts // 2, num_prompts - 1):
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert [index.num_blocks(slot) for slot in slots] == [1000] * 4
    assert sizes[1] < sizes[0] * 1.05
    assert sizes[1] < 4000 * 400
