"""Which replicas are likely to hold the beginning of a prompt: hashes of its blocks, and who was sent them lately.

A guess from what was sent, forgotten by one LRU per replica as large as its cache. As in an engine, what a call uses
begins to grow old when its answer is over: it is stored when the call is sent, and then again. Beside it what a
replica's engine says that it holds, where it says so (`kv_mirror.py`), which goes when it says that too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Block hash to the set of replicas, and per replica its blocks, least recently used first.

    Blocks are chained: a block's hash stands for everything before it too. A replica is named by its slot; no more
    blocks are kept than fit into the replicas' caches together.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._caches: dict[int, _Cache] = {}

    def add(self, capacity_tokens: int) -> int:
        """The slot of a new replica whose cache holds so many tokens."""
        slot = next(slot for slot in range(len(self._caches) + 1) if slot not in self._caches)
        self._caches[slot] = _Cache(capacity_tokens)
        return slot

    def remove(self, slot: int) -> None:
        """Forget a replica; its slot may be given to another."""
        self.clear(slot)
        del self._caches[slot]

    def resize(self, slot: int, capacity_tokens: int) -> None:
        """The replica's cache holds so many tokens now."""
        self._caches[slot].capacity = capacity_tokens
        self._evict(slot)

    def num_blocks(self, slot: int) -> int:
        """How many blocks the replica is thought to hold."""
        cache = self._caches.get(slot)
        return len(cache.sizes) + len(cache.known) if cache is not None else 0

    def match(self, blocks: Sequence[int]) -> dict[int, int]:
        """By slot how many of the first `blocks` a replica holds without a gap; those with none are left out."""
        holders = self._holders
        depths: dict[int, int] = {}
        alive = -1
        depth = 0
        for block in blocks:
            here = holders.get(block, 0) & alive
            if here != alive:
                if depth:
                    _note(depths, alive & ~here, depth)
                alive = here
                if not here:
                    break
            depth += 1
        while alive > 0:
            # `_note`, written out: nearly every prompt comes by here.
            lowest = alive & -alive
            depths[lowest.bit_length() - 1] = depth
            alive ^= lowest
        return depths

    def store(self, slot: int, blocks: Sequence[int], ends: Sequence[int]) -> None:
        """The replica uses these blocks now: they were sent to it, or a call that held them until now is over.

        `ends[n]` are the tokens of a prompt up to the end of its block n.
        """
        cache = self._caches[slot]
        sizes = cache.sizes
        tokens = 0
        # From the end, so that a prompt's beginning is the last of it to be forgotten.
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            if block in sizes:
                sizes.move_to_end(block)
            elif block not in cache.known:
                sizes[block] = size = ends[place] - (ends[place - 1] if place else 0)
                tokens += size
                self._holders[block] = self._holders.get(block, 0) | 1 << slot
        if tokens:
            cache.tokens += tokens
            self._evict(slot)

    def hold(self, slot: int, block: int, tokens: int) -> bool:
        """The replica's engine says that it holds this block of so many tokens; whether that had been guessed."""
        cache = self._caches[slot]
        if block in cache.known:
            return False
        was_guessed = cache.forget(block)
        cache.known[block] = tokens
        self._holders[block] = self._holders.get(block, 0) | 1 << slot
        return was_guessed

    def drop(self, slot: int, block: int) -> None:
        """It says that it does not hold this block any more."""
        cache = self._caches[slot]
        was_known = cache.known.pop(block, None) is not None
        if cache.forget(block) or was_known:
            self._leave(slot, block)

    def clear(self, slot: int) -> None:
        """The replica holds nothing."""
        cache = self._caches[slot]
        for block in (*cache.sizes, *cache.known):
            self._leave(slot, block)
        self._caches[slot] = _Cache(cache.capacity)

    def doubt(self, slot: int) -> None:
        """What the replica's engine has said is a guess from now on."""
        cache = self._caches[slot]
        cache.sizes.update(cache.known)
        cache.tokens += sum(cache.known.values())
        cache.known.clear()
        self._evict(slot)

    def _evict(self, slot: int) -> None:
        cache = self._caches[slot]
        while cache.tokens > cache.capacity:
            block, size = cache.sizes.popitem(last=False)
            cache.tokens -= size
            self._leave(slot, block)

    def _leave(self, slot: int, block: int) -> None:
        left = self._holders[block] & ~(1 << slot)
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


class _Cache:
    """What one replica is thought to hold, blocks with their tokens, least recently used first; and what is known."""

    __slots__ = ("capacity", "known", "sizes", "tokens")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = 0
        """Those of `sizes` together."""
        self.sizes: OrderedDict[int, int] = OrderedDict()
        self.known: dict[int, int] = {}
        """By the engine's own word, so none of `sizes`."""

    def forget(self, block: int) -> bool:
        """Whether it had been guessed; it is no more."""
        size = self.sizes.pop(block, None)
        if size is None:
            return False
        self.tokens -= size
        return True


def _note(depths: dict[int, int], slots: int, depth: int) -> None:
    while slots:
        lowest = slots & -slots
        depths[lowest.bit_length() - 1] = depth
        slots ^= lowest
