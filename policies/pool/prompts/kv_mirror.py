"""What one engine holds of prompts, by its own word: its blocks of tokens as blocks of text in the prefix index.

Fed by `kv_feed.py`. A block of the index belongs to the engine's block in which it ends, and goes with that one:
engines give up the end of a prompt first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from backends.prompts.text import BYTES_PER_TOKEN
from policies.pool.load.demand import ENDS_TOKENS
from policies.pool.prompts.engine_text import EngineText
from policies.pool.prompts.kv_events import BlockHash, Cleared, Event, Removed, Stored
from policies.pool.prompts.prefix_index import PrefixIndex

MAX_BLOCKS = 131_072
"""Of an engine; with more, those that were stored first are forgotten. Each takes about 400 bytes."""
_ENDS = tuple(tokens * BYTES_PER_TOKEN for tokens in ENDS_TOKENS)
_BEGINS = (0, *_ENDS)
_SIZES = tuple(end - begin for begin, end in zip((0, *ENDS_TOKENS), ENDS_TOKENS, strict=False))


class _Block(msgspec.Struct, frozen=True, gc=False):
    """One of the engine's. `end` is where it ends in its prompt, in bytes; `chain` is the hash of the last whole block
    of the index up to there, which is number `place - 1`; `completed` are those that end within."""

    parent: BlockHash | None
    text: bytes
    end: int
    place: int
    chain: int
    completed: tuple[int, ...]


Happening = Literal[
    "batch", "nonsense", "gap_filled", "gap_lost", "stored", "removed", "cleared", "confirmed", "passed_over"
]
"""What is counted of a feed. `batch`, `nonsense`, gaps: messages, and batches or events that cannot be read. `stored`,
`removed`, `passed_over`: the engine's blocks, understood and not. `cleared`: times. `confirmed`: blocks of the index
that had been guessed before."""


class KvMirror:
    """One engine's blocks, and the slots of the index that stand for it."""

    def __init__(self, index: PrefixIndex, slots: Sequence[int], text: EngineText, counts: Counter[Happening]) -> None:
        self._index = index
        self._slots = tuple(slots)
        self._text = text
        self._counts = counts
        self._blocks: dict[BlockHash, _Block] = {}
        # Prompts that part behind the end of a block of the index but in the same block of the engine share the former.
        self._held: dict[int, int] = {}
        self._group: int | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks of the engine that are known."""
        return len(self._blocks)

    def apply(self, event: Event) -> None:
        """The engine says so."""
        if isinstance(event, Cleared):
            self._counts["cleared"] += 1
            self.clear()
        elif isinstance(event, Removed):
            self._remove(event)
        else:
            self._store(event)

    def clear(self) -> None:
        """The engine holds nothing."""
        self._blocks.clear()
        self._held.clear()
        for slot in self._slots:
            self._index.clear(slot)

    def doubt(self) -> None:
        """Something has been missed: what was known is a guess from now on."""
        self._blocks.clear()
        self._held.clear()
        for slot in self._slots:
            self._index.doubt(slot)

    def _remove(self, event: Removed) -> None:
        # Other groups have blocks of the same names.
        is_followed = event.is_followed and event.group_idx in (None, self._group)
        for name in event.block_hashes:
            block = self._blocks.get(name) if is_followed else None
            if block is None:
                self._counts["passed_over"] += 1
            else:
                self._counts["removed"] += 1
                self._forget(name, block)

    def _store(self, event: Stored) -> None:
        num_stored = 0
        if event.is_followed:
            if not self._blocks:
                self._group = event.group_idx
            if event.group_idx == self._group:
                num_stored = self._extend(event)
        self._counts["stored"] += num_stored
        self._counts["passed_over"] += len(event.block_hashes) - num_stored

    def _extend(self, event: Stored) -> int:
        """Take the blocks in, as far as what is before them is known, and text; how many that were."""
        if event.adapter:
            self._text.note_adapter(event.adapter)
        parent = event.parent_block_hash
        begun = self._begin(event) if parent is None else self._continue(parent)
        if begun is None:
            return 0
        end, place, chain, tail = begun
        for number, name in enumerate(event.block_hashes):
            text = self._text.write(event.token_ids[number * event.block_size : (number + 1) * event.block_size])
            if place == len(_ENDS) or not text or (parent is not None and event.extras(number)):
                return number
            if (known := self._blocks.get(name)) is not None:
                self._forget(name, known)
            end += len(text)
            tail += text
            completed: list[int] = []
            while place < len(_ENDS) and end >= _ENDS[place]:
                size = _ENDS[place] - _BEGINS[place]
                # The same step as in `hash_blocks`.
                chain = hash((chain, tail[:size]))
                tail = tail[size:]
                self._hold(chain, _SIZES[place])
                completed.append(chain)
                place += 1
            self._keep(name, _Block(parent, text, end, place, chain, tuple(completed)))
            parent = name
        return len(event.block_hashes)

    def _begin(self, event: Stored) -> tuple[int, int, int, bytes]:
        return 0, 0, hash(self._text.seed(event.adapter, event.extras(0) if event.block_hashes else ())), b""

    def _continue(self, name: BlockHash) -> tuple[int, int, int, bytes] | None:
        """Where a block stands: end, place, chain, and the text behind the last whole block of the index."""
        last = self._blocks.get(name)
        if last is None or last.place == len(_ENDS):
            return None
        texts: list[bytes] = []
        lacking = last.end - _BEGINS[last.place]
        block = last
        while lacking > 0:
            texts.append(block.text)
            lacking -= len(block.text)
            before = self._blocks.get(block.parent) if lacking > 0 and block.parent is not None else None
            if lacking > 0 and before is None:
                return None
            block = before or block
        tail = b"".join(reversed(texts))
        return last.end, last.place, last.chain, tail[-lacking:] if lacking else tail

    def _keep(self, name: BlockHash, block: _Block) -> None:
        self._blocks[name] = block
        if len(self._blocks) > MAX_BLOCKS:
            oldest = next(iter(self._blocks))
            self._forget(oldest, self._blocks[oldest])

    def _forget(self, name: BlockHash, block: _Block) -> None:
        del self._blocks[name]
        for chain in block.completed:
            self._drop(chain)

    def _hold(self, chain: int, size: int) -> None:
        held = self._held.get(chain, 0)
        self._held[chain] = held + 1
        if not held:
            for slot in self._slots:
                self._counts["confirmed"] += self._index.hold(slot, chain, size)

    def _drop(self, chain: int) -> None:
        held = self._held.pop(chain) - 1
        if held:
            self._held[chain] = held
            return
        for slot in self._slots:
            self._index.drop(slot, chain)
