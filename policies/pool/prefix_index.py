"""Which replicas are likely to hold the beginning of a prompt: hashes of its blocks, and who was sent them lately.

A guess from what was sent, forgotten by one LRU per replica as large as its cache: as in an engine, what a call in
flight uses stays, and begins to grow old when its answer is over. Beside it what a replica's engine says that it holds,
where it says so (`kv_mirror.py`), which goes when it says that too.
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
        self._in_use: dict[int, dict[int, int]] = {}
        self._known: dict[int, dict[int, int]] = {}
        self._tokens: dict[int, int] = {}
        self._capacity: dict[int, int] = {}

    def add(self, capacity_tokens: int) -> int:
        """The slot of a new replica whose cache holds so many tokens."""
        slot = next(slot for slot in range(len(self._blocks) + 1) if slot not in self._blocks)
        self._blocks[slot] = OrderedDict()
        self._in_use[slot] = {}
        self._known[slot] = {}
        self._tokens[slot] = 0
        self._capacity[slot] = capacity_tokens
        return slot

    def remove(self, slot: int) -> None:
        """Forget a replica; its slot may be given to another."""
        self.clear(slot)
        del self._blocks[slot], self._in_use[slot], self._known[slot], self._tokens[slot], self._capacity[slot]

    def resize(self, slot: int, capacity_tokens: int) -> None:
        """The replica's cache holds so many tokens now."""
        self._capacity[slot] = capacity_tokens
        self._evict(slot)

    def num_blocks(self, slot: int) -> int:
        """How many blocks the replica is thought to hold."""
        return len(self._blocks.get(slot, ())) + len(self._known.get(slot, ()))

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
        """The replica has been sent these blocks, and uses them until their `release`.

        `ends[n]` are the tokens of a prompt up to the end of its block n.
        """
        held, known, in_use = self._blocks[slot], self._known[slot], self._in_use[slot]
        holders = self._holders
        bit = 1 << slot
        tokens = 0
        # From the end, so that a prompt's beginning is the last of it to be forgotten.
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            in_use[block] = in_use.get(block, 0) + 1
            if block in held:
                held.move_to_end(block)
            elif block not in known:
                size = ends[place] - (ends[place - 1] if place else 0)
                held[block] = size
                tokens += size
                holders[block] = holders.get(block, 0) | bit
        if tokens:
            self._tokens[slot] += tokens
            self._evict(slot)

    def release(self, slot: int, blocks: Sequence[int]) -> None:
        """A call that was sent with these blocks is over. Nothing where the replica has been removed meanwhile."""
        held = self._blocks.get(slot)
        if held is None:
            return
        in_use = self._in_use[slot]
        for block in reversed(blocks):
            uses = in_use.get(block, 0)
            if uses > 1:
                in_use[block] = uses - 1
                continue
            if uses:
                del in_use[block]
            if block in held:
                held.move_to_end(block)

    def hold(self, slot: int, block: int, tokens: int) -> bool:
        """The replica's engine says that it holds this block of so many tokens; whether that had been guessed."""
        known = self._known[slot]
        if block in known:
            return False
        guessed = self._blocks[slot].pop(block, None)
        if guessed is not None:
            self._tokens[slot] -= guessed
        known[block] = tokens
        self._holders[block] = self._holders.get(block, 0) | 1 << slot
        return guessed is not None

    def drop(self, slot: int, block: int) -> None:
        """It says that it does not hold this block any more."""
        known = self._known[slot].pop(block, None)
        guessed = self._blocks[slot].pop(block, None)
        if guessed is not None:
            self._tokens[slot] -= guessed
        if known is not None or guessed is not None:
            self._leave(slot, block)

    def clear(self, slot: int) -> None:
        """The replica holds nothing."""
        for block in (*self._blocks[slot], *self._known[slot]):
            self._leave(slot, block)
        self._blocks[slot].clear()
        self._known[slot].clear()
        self._tokens[slot] = 0

    def doubt(self, slot: int) -> None:
        """What the replica's engine has said is a guess from now on."""
        known = self._known[slot]
        self._blocks[slot].update(known)
        self._tokens[slot] += sum(known.values())
        known.clear()
        self._evict(slot)

    def _evict(self, slot: int) -> None:
        held = self._blocks[slot]
        holders = self._holders
        capacity, tokens = self._capacity[slot], self._tokens[slot]
        in_use = self._in_use[slot]
        mask = ~(1 << slot)
        while tokens > capacity:
            block, size = held.popitem(last=False)
            if block in in_use:
                if len(held) >= len(in_use):
                    held[block] = size
                    continue
                # All are in use: more than there is room for, so it cannot be.
                del in_use[block]
            tokens -= size
            left = holders[block] & mask
            if left:
                holders[block] = left
            else:
                del holders[block]
        self._tokens[slot] = tokens

    def _leave(self, slot: int, block: int) -> None:
        left = self._holders[block] & ~(1 << slot)
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def _note(depths: dict[int, int], slots: int, depth: int) -> None:
    while slots:
        lowest = slots & -slots
        depths[lowest.bit_length() - 1] = depth
        slots ^= lowest
