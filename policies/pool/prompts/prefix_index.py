"""Which replicas are likely to hold the beginning of a prompt: hashes of its blocks, and who was sent them lately.

A guess from what was sent, forgotten by one LRU per replica as large as its cache: as in an engine, what a call in
flight uses stays, and begins to grow old when its answer is over. Beside it what a replica's engine says that it holds,
where it says so (`kv_mirror.py`), which goes when it says that too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush


class PrefixIndex:
    """Block hash to the set of replicas, and per replica its blocks, least recently used first.

    Blocks are chained: a block's hash stands for everything before it too. A replica is named by its slot; no more
    blocks are kept than fit into the replicas' caches together.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._caches: dict[int, _Cache] = {}
        self._free: list[int] = []

    def add(self, capacity_tokens: int) -> int:
        """The slot of a new replica whose cache holds so many tokens."""
        # Low ones first: slots are bits of numbers.
        slot = heappop(self._free) if self._free else len(self._caches)
        self._caches[slot] = _Cache(capacity_tokens)
        return slot

    def remove(self, slot: int) -> None:
        """Forget a replica; its slot may be given to another."""
        self.clear(slot)
        del self._caches[slot]
        heappush(self._free, slot)

    def resize(self, slot: int, capacity_tokens: int) -> None:
        """The replica's cache holds so many tokens now."""
        self._caches[slot].capacity = capacity_tokens
        self._evict(slot)

    def num_blocks(self, slot: int) -> int:
        """How many blocks the replica is thought to hold."""
        cache = self._caches.get(slot)
        return len(cache.sizes) + len(cache.known) if cache is not None else 0

    def match(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Who holds how many of the first `blocks` without a gap: bits of slots, with a number of blocks that all of
        them hold at least. The most first; who holds none is left out.
        """
        holders = self._holders
        found: list[tuple[int, int]] = []
        alive = -1
        depth = 0
        for block in blocks:
            here = holders.get(block, 0) & alive
            if here != alive:
                if depth:
                    found.append((alive, depth))
                alive = here
                if not here:
                    break
            depth += 1
        if alive > 0:
            found.append((alive, depth))
        found.reverse()
        return found

    def store(self, slot: int, blocks: Sequence[int], ends: Sequence[int]) -> None:
        """The replica has been sent these blocks, and uses them until their `release`.

        `ends[n]` are the tokens of a prompt up to the end of its block n.
        """
        cache, holders = self._caches[slot], self._holders
        sizes, in_use = cache.sizes, cache.in_use
        tokens = 0
        # From the end, so that a prompt's beginning is the last of it to be forgotten.
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            uses = in_use.pop(block, 0)
            in_use[block] = uses + 1
            if uses:
                continue
            if block in sizes:
                del cache.idle[block]
            elif block not in cache.known:
                sizes[block] = size = ends[place] - (ends[place - 1] if place else 0)
                tokens += size
                holders[block] = holders.get(block, 0) | 1 << slot
        if tokens:
            cache.tokens += tokens
            self._evict(slot)

    def release(self, slot: int, blocks: Sequence[int]) -> None:
        """A call that was sent with these blocks is over. Nothing where the replica has been removed meanwhile."""
        cache = self._caches.get(slot)
        if cache is None:
            return
        in_use = cache.in_use
        for block in reversed(blocks):
            uses = in_use.get(block)
            if uses is None:
                continue
            if uses > 1:
                in_use[block] = uses - 1
                continue
            del in_use[block]
            if block in cache.sizes:
                cache.idle[block] = None

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
        cache.idle.update((block, None) for block in cache.known if block not in cache.in_use)
        cache.known.clear()
        self._evict(slot)

    def _evict(self, slot: int) -> None:
        cache = self._caches[slot]
        while cache.tokens > cache.capacity:
            if cache.idle:
                block, _ = cache.idle.popitem(last=False)
            else:
                # All are in use: more than there is room for, so it cannot be.
                block = next(block for block in cache.in_use if block in cache.sizes)
                del cache.in_use[block]
            cache.tokens -= cache.sizes.pop(block)
            self._leave(slot, block)

    def _leave(self, slot: int, block: int) -> None:
        left = self._holders[block] & ~(1 << slot)
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


class _Cache:
    """What one replica is thought to hold: blocks with their tokens, in use or idle since; and what is known of it."""

    __slots__ = ("capacity", "idle", "in_use", "known", "sizes", "tokens")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = 0
        """Those of `sizes` together."""
        self.sizes: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Those of `sizes` that are not in use, in the order of their last use."""
        self.in_use: dict[int, int] = {}
        """By how many calls, in the order in which they came; what is known is counted too."""
        self.known: dict[int, int] = {}
        """By the engine's own word, so none of `sizes`."""

    def forget(self, block: int) -> bool:
        """Whether it had been guessed; it is no more."""
        size = self.sizes.pop(block, None)
        if size is None:
            return False
        self.tokens -= size
        self.idle.pop(block, None)
        return True
