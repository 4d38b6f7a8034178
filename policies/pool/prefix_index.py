"""Which replicas are likely to hold the beginning of a prompt: hashes of its blocks, and who was sent them lately.

Approximate: it knows what was sent and guesses what was forgotten, by one LRU per replica as large as its cache.
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
        self._blocks: dict[int, OrderedDict[int, int]] = {}
        self._tokens: dict[int, int] = {}
        self._capacity: dict[int, int] = {}

    def add(self, capacity_tokens: int) -> int:
        """The slot of a new replica whose cache holds so many tokens."""
        slot = next(slot for slot in range(len(self._blocks) + 1) if slot not in self._blocks)
        self._blocks[slot] = OrderedDict()
        self._tokens[slot] = 0
        self._capacity[slot] = capacity_tokens
        return slot

    def remove(self, slot: int) -> None:
        """Forget a replica; its slot may be given to another."""
        self.resize(slot, 0)
        del self._blocks[slot], self._tokens[slot], self._capacity[slot]

    def resize(self, slot: int, capacity_tokens: int) -> None:
        """The replica's cache holds so many tokens now."""
        self._capacity[slot] = capacity_tokens
        self._evict(slot)

    def num_blocks(self, slot: int) -> int:
        """How many blocks the replica is thought to hold."""
        return len(self._blocks.get(slot, ()))

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
        if depth:
            _note(depths, alive, depth)
        return depths

    def store(self, slot: int, blocks: Sequence[int], ends: Sequence[int]) -> None:
        """The replica has been sent these blocks; `ends[n]` are the tokens of a prompt up to the end of its block n."""
        held = self._blocks[slot]
        holders = self._holders
        bit = 1 << slot
        tokens = 0
        # From the end, so that a prompt's beginning is the last of it to be forgotten.
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            if block in held:
                held.move_to_end(block)
            else:
                size = ends[place] - (ends[place - 1] if place else 0)
                held[block] = size
                tokens += size
                holders[block] = holders.get(block, 0) | bit
        if tokens:
            self._tokens[slot] += tokens
            self._evict(slot)

    def _evict(self, slot: int) -> None:
        held = self._blocks[slot]
        holders = self._holders
        capacity, tokens = self._capacity[slot], self._tokens[slot]
        mask = ~(1 << slot)
        while tokens > capacity:
            block, size = held.popitem(last=False)
            tokens -= size
            left = holders[block] & mask
            if left:
                holders[block] = left
            else:
                del holders[block]
        self._tokens[slot] = tokens


def _note(depths: dict[int, int], slots: int, depth: int) -> None:
    while slots:
        lowest = slots & -slots
        depths[lowest.bit_length() - 1] = depth
        slots ^= lowest
