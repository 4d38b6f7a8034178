"""The KV memory of a simulated replica: the tokens in use, and a prefix cache of full blocks with LRU eviction.

The id of a block identifies its content and everything before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile


class Lease:
    """The memory of one request: blocks that other requests may share, and `private` tokens that they cannot."""

    __slots__ = ("cached_tokens", "held", "host_tokens", "private")

    def __init__(self, held: list[int], private: int, cached_tokens: int, host_tokens: int) -> None:
        self.held = held
        self.private = private
        self.cached_tokens = cached_tokens
        """Tokens that need not be computed, including those in the host tier."""
        self.host_tokens = host_tokens
        """Those among them that have to be copied from the host first."""


class BlockCache:
    """Memory for `capacity` tokens. The blocks of finished requests stay cached until their room is needed.

    A block is pinned while a request holds it. Afterwards it may be evicted, the least recently used first, to a host
    tier of `host_capacity` tokens if there is one. All sizes are tokens.
    """

    def __init__(self, capacity: int, block_tokens: int, host_capacity: int = 0) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._host_blocks = host_capacity // block_tokens
        self._pinned: dict[int, int] = {}
        # In order of use. OrderedDict, since a plain dict finds its first key slowly after many deletions at its front.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._host: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Tokens of requests and of cached blocks together."""
        return self._private + self.block_tokens * (len(self._pinned) + len(self._idle))

    @property
    def num_blocks(self) -> int:
        """Cached blocks on the device."""
        return len(self._pinned) + len(self._idle)

    def acquire(self, blocks: Sequence[int], tokens: int) -> Lease | None:
        """Reserve `tokens`, the first of which are these full blocks; None if there is no room.

        Blocks that are cached already are shared. The others are shared once they are computed and `publish`ed.
        """
        pinned, idle, size = self._pinned, self._idle, self.block_tokens
        num_hits = 0
        num_idle = 0
        for block in blocks:
            if block in idle:
                num_idle += 1
            elif block not in pinned:
                break
            num_hits += 1
        private = tokens - num_hits * size
        room = self.capacity - self.used
        if private > room + (len(idle) - num_idle) * size:
            return None
        hits = list(blocks[:num_hits])
        for block in hits:
            uses = pinned.get(block, 0)
            if not uses:
                del idle[block]
            pinned[block] = uses + 1
        if private > room:
            self._evict(-(-(private - room) // size))
        self._private += private
        lease = Lease(hits, private, num_hits * size, 0)
        if self._host:
            self._load(lease, blocks[num_hits:])
        return lease

    def publish(self, lease: Lease, blocks: Sequence[int]) -> None:
        """Share blocks that the lease's request has computed. A second copy of a cached block stays private."""
        pinned, idle, held = self._pinned, self._idle, lease.held
        num_before = len(held)
        for block in blocks:
            if block not in pinned and block not in idle:
                pinned[block] = 1
                held.append(block)
        tokens = self.block_tokens * (len(held) - num_before)
        lease.private -= tokens
        self._private -= tokens

    def release(self, lease: Lease) -> None:
        """Free a finished request's memory. The last block is evicted first: it is useless without those before it."""
        self._private -= lease.private
        pinned, idle = self._pinned, self._idle
        for block in reversed(lease.held):
            uses = pinned[block]
            if uses == 1:
                del pinned[block]
                idle[block] = None
            else:
                pinned[block] = uses - 1
        lease.held = []
        lease.private = 0

    def _load(self, lease: Lease, blocks: Sequence[int]) -> None:
        """Continue a match in the host tier: these blocks are copied, not computed."""
        host = self._host
        found = list(takewhile(host.__contains__, blocks))
        for block in found:
            host.move_to_end(block)
        lease.host_tokens = self.block_tokens * len(found)
        lease.cached_tokens += lease.host_tokens
        self.publish(lease, found)

    def _evict(self, num_blocks: int) -> None:
        idle, host = self._idle, self._host
        for _ in range(num_blocks):
            block, _ = idle.popitem(last=False)
            if self._host_blocks:
                host[block] = None
                host.move_to_end(block)
                if len(host) > self._host_blocks:
                    host.popitem(last=False)
