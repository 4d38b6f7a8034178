"""The prefix index against a plain model of it, its bound, and what its hashes stand for."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.prompts.prefix_index import PrefixIndex
from tests.support.policy.places import depths


class Oracle:
    """The same, as slowly as it is simple: a list per replica, most recently used last, and who uses what."""

    def __init__(self) -> None:
        self.held: dict[int, list[tuple[str, int]]] = {}
        self.in_use: dict[int, Counter[str]] = {}
        self.capacity: dict[int, int] = {}

    def add(self, slot: int, capacity: int) -> None:
        """A new replica."""
        self.held[slot], self.in_use[slot], self.capacity[slot] = [], Counter(), capacity

    def store(self, slot: int, blocks: list[str], sizes: list[int]) -> None:
        """Send blocks to a replica."""
        held = self.held[slot]
        for block, size in reversed(list(zip(blocks, sizes, strict=True))):
            held[:] = [kept for kept in held if kept[0] != block]
            held.append((block, size))
        self.in_use[slot].update(blocks)
        self.trim(slot)

    def release(self, slot: int, blocks: list[str]) -> None:
        """A call is over: what nobody else uses begins to grow old."""
        for block in reversed(blocks):
            self.in_use[slot] -= Counter([block])
            if not self.in_use[slot][block]:
                self.held[slot].sort(key=lambda kept: kept[0] == block)

    def trim(self, slot: int) -> None:
        """Forget what is too much: the oldest that is not in use, and only without such the oldest that is."""
        held, in_use = self.held[slot], self.in_use[slot]
        while sum(size for _, size in held) > self.capacity[slot]:
            idle = [block for block, _ in held if block not in in_use]
            goes = idle[0] if idle else held[0][0]
            held[:] = [kept for kept in held if kept[0] != goes]
            in_use.pop(goes, None)

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
    st.tuples(st.just("begin"), st.integers(0, 3), WORDS),
    st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("match"), st.integers(0, 3), WORDS),
    st.tuples(st.just("resize"), st.integers(0, 3), st.integers(0, 40)),
    st.tuples(st.just("replace"), st.integers(0, 3), st.integers(0, 40)),
)


@given(st.lists(STEPS, max_size=60))
def test_prefix_index_is_an_lru_per_replica(steps: list[tuple[str, int, str | int]]) -> None:
    """After any steps it knows what a list per replica knows: depths, blocks held, and never more than fits."""
    index, oracle = PrefixIndex(), Oracle()
    slots = [index.add(10 * (place + 1)) for place in range(4)]
    calls: dict[int, list[list[str]]] = {slot: [] for slot in slots}
    seen: set[str] = set()
    for place, slot in enumerate(slots):
        oracle.add(slot, 10 * (place + 1))
    for action, place, what in steps:
        slot = slots[place]
        if isinstance(what, int):
            if action == "end":
                ended = [calls[slot].pop(what % len(calls[slot]))] if calls[slot] else []
                for blocks in ended:
                    index.release(slot, [hash(block) for block in blocks])
                    oracle.release(slot, blocks)
            elif action == "replace":
                index.remove(slot)
                slots[place] = slot = index.add(what)
                oracle.add(slot, what)
                calls[slot] = []
            else:
                index.resize(slot, what)
                oracle.capacity[slot] = what
                oracle.trim(slot)
            continue
        blocks = _chain(what)
        seen.update(blocks)
        sizes = [3 + depth for depth in range(len(blocks))]
        if action in ("store", "begin"):
            index.store(slot, [hash(block) for block in blocks], list(accumulate(sizes)))
            oracle.store(slot, blocks, sizes)
        if action == "store":
            index.release(slot, [hash(block) for block in blocks])
            oracle.release(slot, blocks)
        elif action == "begin":
            calls[slot].append(blocks)
        found = depths(index, [hash(block) for block in blocks])
        expected = {slot: oracle.depth(slot, blocks) for slot in oracle.held}
        assert found == {slot: depth for slot, depth in expected.items() if depth}
        for slot in slots:
            names = {block for block, _ in oracle.held[slot]}
            assert {block for block in seen if slot in depths(index, [hash(block)])} == names
            assert index.num_blocks(slot) == len(names)


def test_prefix_index_forgets_the_end_of_a_prompt_before_its_beginning() -> None:
    """A beginning without its end is worth something, an end without its beginning nothing."""
    index = PrefixIndex()
    slot = index.add(3)
    index.store(slot, [1, 2, 3], [1, 2, 3])
    index.store(slot, [9], [1])

    assert depths(index, [1, 2, 3]) == {slot: 2}


def test_prefix_index_keeps_what_is_in_use_and_then_as_the_latest() -> None:
    """As an engine does: nothing of a call in flight is evicted, and its prompt grows old from the call's end on."""
    index = PrefixIndex()
    slot = index.add(3)
    index.store(slot, [1, 2], [1, 2])
    for block in (7, 8):
        index.store(slot, [block], [1])
        index.release(slot, [block])
    during = depths(index, [1, 2]), depths(index, [7]), depths(index, [8])
    index.release(slot, [1, 2])
    index.store(slot, [9], [1])

    assert during == ({slot: 2}, {}, {slot: 1})
    assert (depths(index, [1, 2]), depths(index, [8])) == ({slot: 2}, {})


def test_prefix_index_forgets_in_the_order_in_which_calls_ended() -> None:
    """Not in that in which they were sent; a beginning that two calls share is in use until the second one's end."""
    index = PrefixIndex()
    slot = index.add(3)
    for blocks in ([1], [1], [2], [3]):
        index.store(slot, blocks, [1])
    for block in (1, 3, 2):
        index.release(slot, [block])
    index.store(slot, [4], [1])

    assert [bool(depths(index, [block])) for block in range(1, 5)] == [True, True, False, True]


def test_prefix_index_more_in_use_than_fits_keeps_the_latest() -> None:
    """There is no room for all of it, so something is not there: within the bound, and without an end to the search."""
    index = PrefixIndex()
    slot = index.add(2)
    for block in range(5):
        index.store(slot, [block], [1])

    assert [bool(depths(index, [block])) for block in range(5)] == [False, False, False, True, True]
    assert index.num_blocks(slot) == 2


def test_prefix_index_release_after_its_replica_is_gone_does_nothing() -> None:
    """A stream may outlive the policy that named its backend; whoever has its slot now loses nothing."""
    index = PrefixIndex()
    slot = index.add(2)
    index.store(slot, [1], [1])
    index.remove(slot)
    index.release(slot, [1])
    again = index.add(2)
    index.store(again, [2], [1])
    index.release(slot, [1])

    assert again == slot
    assert depths(index, [2]) == {slot: 1}


def test_prefix_index_without_room_holds_nothing() -> None:
    """A replica whose cache is switched off."""
    index = PrefixIndex()
    slot = index.add(0)
    index.store(slot, [1, 2], [64, 128])

    assert depths(index, [1, 2]) == {}
    assert depths(index, []) == {}


def test_prefix_index_walks_for_many_replicas_at_once() -> None:
    """A hundred replicas of different depths."""
    index = PrefixIndex()
    slots = [index.add(1000) for _ in range(100)]
    blocks = list(range(100, 200))
    for depth, slot in enumerate(slots):
        index.store(slot, blocks[:depth], list(range(1, depth + 1)))

    assert depths(index, blocks) == {slot: depth for depth, slot in enumerate(slots) if depth}


@pytest.mark.parametrize("num_prompts", [60_000])
def test_prefix_index_unique_prompts_fill_it_to_its_bound_and_no_further(num_prompts: int) -> None:
    """Prompts that nobody repeats: what is held is what the caches hold together, and memory stops growing."""
    index = PrefixIndex()
    slots = [index.add(64 * 1000) for _ in range(4)]
    tracemalloc.start()
    sizes = []
    for number in range(num_prompts):
        index.store(slots[number % 4], [number * 2, number * 2 + 1], [64, 128])
        index.release(slots[number % 4], [number * 2, number * 2 + 1])
        if number in (num_prompts // 2, num_prompts - 1):
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert [index.num_blocks(slot) for slot in slots] == [1000] * 4
    assert sizes[1] < sizes[0] * 1.05
    assert sizes[1] < 4000 * 400
