"""What an engine says of its cache, as the prefix index then knows it: against a cache of pages, and what cannot be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.protocol import Call
from policies.pool.load.demand import ENDS_TOKENS, hash_blocks
from policies.pool.prompts.engine_text import EngineText
from policies.pool.prompts.kv_events import Cleared, Event, Removed, Stored, decode_batch
from policies.pool.prompts.kv_mirror import MAX_BLOCKS, Happening, KvMirror
from policies.pool.prompts.prefix_index import PrefixIndex
from tests.support.engine.engine_words import WORD_BYTES, call_for, engine_text, words
from tests.support.engine.kv_engine import PagedCache, encode_batch
from tests.support.policy.places import depths


class Gateway:
    """An index with one replica, and what follows that replica's engine."""

    def __init__(self, text: EngineText | None = None, capacity_tokens: int = 10**6) -> None:
        self.text = text or engine_text()
        self.index = PrefixIndex()
        self.slot = self.index.add(capacity_tokens)
        self.counts: Counter[Happening] = Counter()
        self.mirror = KvMirror(self.index, [self.slot], self.text, self.counts)

    def hear(self, cache: PagedCache) -> None:
        """Take in what has happened in a cache."""
        self.apply(*decode_batch(encode_batch(*cache.take_events()))[0])

    def apply(self, *events: Event) -> None:
        """Take in events."""
        for event in events:
            self.mirror.apply(event)

    def depth(self, call: Call) -> int:
        """How many blocks of its prompt the replica is thought to hold."""
        return depths(self.index, self.blocks(call)).get(self.slot, 0)

    def blocks(self, call: Call) -> list[int]:
        """The blocks of a call's prompt."""
        written = self.text.read(call)
        assert written is not None
        return hash_blocks(*written)

    def guess(self, call: Call) -> None:
        """Send a call there."""
        self.index.store(self.slot, self.blocks(call), ENDS_TOKENS)


def _held(num_words: int) -> int:
    """Blocks of the index that end within so many words."""
    return sum(4 * end <= num_words * WORD_BYTES for end in ENDS_TOKENS)


PROMPTS = st.text("ab", max_size=40).map(lambda text: "c" * 8 + text)
STEPS = st.one_of(
    st.tuples(st.just("serve"), PROMPTS, st.sampled_from(["", "salt"]), st.sampled_from(["", "tuned"])),
    st.tuples(st.just("clear"), st.just(""), st.just(""), st.just("")),
)


@given(
    st.lists(STEPS, max_size=30), st.integers(4, 40), st.sampled_from([1, 3, 4, 16]), st.sampled_from(["array", "map"])
)
def test_mirror_knows_what_a_paged_cache_holds(steps: list[Any], num_pages: int, page_size: int, form: Any) -> None:
    """After any calls, evictions and resets, of every prompt the blocks that end within what is cached; at most with
    the part of a page in which it goes another way than what is cached."""
    cache, gateway = PagedCache(num_pages * 16 // page_size, page_size, form), Gateway()
    seen = set()
    for step, prompt, salt, adapter in steps:
        if step == "clear":
            cache.clear()
        else:
            cache.serve(words(prompt), salt, adapter)
            seen.add((prompt, salt, adapter))
        gateway.hear(cache)
    for prompt, salt, adapter in seen:
        call = call_for(prompt + "zzz", model=adapter or "base", **({"cache_salt": salt} if salt else {}))

        cached = cache.depth(words(prompt), salt, adapter)
        assert _held(cached) <= gateway.depth(call) <= _held(cached + page_size - 1)
    assert gateway.counts["passed_over"] == 0
    assert gateway.mirror.num_blocks <= num_pages * 16 // page_size


def _stored(names: list[Any], text: str, parent: Any = None, size: int = 4, **more: Any) -> Stored:
    return Stored(names, parent, words(text), size, **more)


def test_mirror_takes_in_what_this_gateway_never_sent() -> None:
    """The whole point: another gateway's prompt is known as soon as the engine has told of it."""
    gateway = Gateway()

    gateway.apply(_stored([1, 2, 3], "abcdefghijkl"))

    assert gateway.depth(call_for("abcdefghijklmnop")) == _held(12) > 0


def test_mirror_drops_a_guess_that_the_engine_contradicts() -> None:
    """What was sent there and is evicted is not there, whoever had noted it."""
    gateway = Gateway()
    gateway.guess(call_for("a" * 24))
    gateway.apply(_stored([1, 2, 3], "a" * 24, size=8))
    known = gateway.counts["confirmed"]

    gateway.apply(Removed([2]))

    assert known == _held(24)
    assert gateway.depth(call_for("a" * 24)) == _held(8) < known


def test_mirror_keeps_what_prompts_share_until_the_last_of_them_is_gone() -> None:
    """Two that part in the middle of an engine's block both hold the block of text that ends before that."""
    gateway = Gateway()
    gateway.apply(_stored([1], "a" * 7 + "b", size=8), _stored([2], "a" * 7 + "c", size=8))

    depths = []
    for name in (1, 2):
        gateway.apply(Removed([name]))
        depths.append(gateway.depth(call_for("a" * 7 + "d")))

    assert depths == [_held(7), 0] == [1, 0]


def test_mirror_clears_guesses_too_when_the_engine_holds_nothing() -> None:
    """A reset takes everything with it."""
    gateway = Gateway()
    gateway.guess(call_for("a" * 24))
    gateway.apply(_stored([1], "b" * 8, size=8))

    gateway.apply(Cleared())

    assert gateway.depth(call_for("a" * 24)) == gateway.depth(call_for("b" * 24)) == 0
    assert gateway.index.num_blocks(gateway.slot) == gateway.mirror.num_blocks == 0


def test_mirror_keeps_what_it_knows_however_small_the_configured_cache() -> None:
    """What the engine says is not forgotten for guesses, and takes none of their room."""
    gateway = Gateway(capacity_tokens=ENDS_TOKENS[0])
    gateway.apply(_stored([1, 2, 3, 4], "abcdefghijklmnop"))

    gateway.guess(call_for("z" * 40))

    assert gateway.depth(call_for("abcdefghijklmnop")) == _held(16)
    assert gateway.depth(call_for("z" * 40)) == 1


def test_mirror_in_doubt_keeps_what_it_knew_as_a_guess_that_can_be_forgotten() -> None:
    """After a gap nothing is certain, and nothing is thrown away either, as far as there is room for guesses."""
    gateway = Gateway(capacity_tokens=ENDS_TOKENS[1])
    gateway.apply(_stored([1, 2, 3, 4], "abcdefghijklmnop"))

    gateway.mirror.doubt()

    assert gateway.mirror.num_blocks == 0
    assert gateway.index.num_blocks(gateway.slot) == 2


def test_mirror_passes_over_blocks_behind_what_it_does_not_know() -> None:
    """Without their beginning nothing can be said of them; their removal is no surprise either."""
    gateway = Gateway()

    gateway.apply(_stored([2, 3], "abcdefgh", parent=1), Removed([2, 9]))

    assert gateway.mirror.num_blocks == 0
    assert gateway.counts == {"stored": 0, "passed_over": 4}


def test_mirror_stops_where_a_picture_begins() -> None:
    """Blocks that are told apart by more than text have no place in a chain of text."""
    gateway = Gateway()

    gateway.apply(_stored([1, 2, 3], "abcdefghijkl", extra_keys=[None, ["picture"], None]))

    assert gateway.mirror.num_blocks == 1


def test_mirror_follows_one_group_of_blocks_and_no_other() -> None:
    """Engines with windows tell of the same blocks once for each kind of attention, and evict them apart."""
    gateway = Gateway()
    gateway.apply(_stored([1, 2], "abcdefgh", group_idx=1, kv_cache_spec_kind="sliding_window"))
    gateway.apply(_stored([1, 2], "abcdefgh", group_idx=0, kv_cache_spec_kind="full_attention"))

    gateway.apply(Removed([1, 2], group_idx=1))

    assert gateway.depth(call_for("abcdefgh")) == _held(8) > 0


def test_mirror_keeps_salted_prompts_apart() -> None:
    """Of the same text, only whoever has the salt finds it."""
    text = engine_text("tenant")
    gateway = Gateway(text)
    mine = call_for("abcdefgh")
    salt = text._config.salt(mine)

    gateway.apply(_stored([1, 2], "abcdefgh", extra_keys=[[salt], None]))

    other = call_for("abcdefgh", tenant="other", cache_salt=salt)
    assert gateway.depth(mine) == _held(8)
    assert gateway.depth(other) == 0


@pytest.mark.parametrize(
    "events",
    [
        [Stored([1, 1, 1], None, words("abcdefghijkl"), 4), Stored([2], 1, words("abcd"), 4)],
        [Stored([1], None, words("abcd"), 4), Stored([1], 1, words("abcd"), 4), Stored([2], 1, words("a" * 40), 40)],
        [Stored([1], None, [2**31] * 4, 4), Stored([2], 1, words("abcd"), 4)],
        [Stored([], None, [], 4), Stored([], 5, [], 4), Removed([])],
    ],
    ids=["its own parent", "again behind itself", "tokens that are none", "nothing"],
)
def test_mirror_survives_what_no_engine_would_say(events: list[Event]) -> None:
    """Whatever is told, it ends, and can be taken back."""
    gateway = Gateway()

    gateway.apply(*events, Removed([1, 2]))

    assert gateway.mirror.num_blocks == gateway.index.num_blocks(gateway.slot) == 0


EVENTS = st.one_of(
    st.builds(
        lambda names, parent, size, letters: Stored(names, parent, (words(letters) * 99)[: size * len(names)], size),
        st.lists(st.integers(0, 9), max_size=5),
        st.none() | st.integers(0, 9),
        st.integers(1, 40),
        st.text("abü", min_size=1, max_size=5),
    ),
    st.builds(Removed, st.lists(st.integers(0, 9), max_size=5)),
    st.just(Cleared()),
)


@given(st.lists(EVENTS, max_size=40))
def test_mirror_of_any_events_can_be_emptied_again(events: list[Event]) -> None:
    """No event leaves anything behind in the index that no later event takes away."""
    gateway = Gateway()
    gateway.apply(*events)

    gateway.apply(Removed(list(range(10))))

    assert gateway.mirror.num_blocks == gateway.index.num_blocks(gateway.slot) == 0
    assert not gateway.index._holders


def test_mirror_is_bounded_whatever_an_engine_says() -> None:
    """What was stored first is forgotten, in the index too."""
    gateway = Gateway()
    for start in range(0, MAX_BLOCKS + 4096, 4096):
        gateway.apply(*(_stored([name], "abcdef" + chr(97 + name % 26), size=7) for name in range(start, start + 4096)))

    assert gateway.mirror.num_blocks == MAX_BLOCKS
    assert gateway.index.num_blocks(gateway.slot) <= 26
