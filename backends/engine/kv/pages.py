"""The pool of KV pages: who uses which, which full pages can be found again, and which contents give way.

Bookkeeping only: the tensors are `kv_cache.KVCache`'s. A page is in one of three places:

    blank -> in use (references > 0) -> idle: named, unused, least recently used first -> evicted: blank again
      ^            |                       |
      +------------+ no name               +-> in use again, by a prefix hit

Contents of a named page never change. Evicted contents move to the host tier and come back on a hit.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backends.engine.kv.host_tier import HostTier
from backends.engine.step.plan import Transfers
from kernels.paging import PAGE_SIZE


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_SIZE)


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Pages now (`cached` ones are idle: named, and free to be reused), and events since the start, in pages."""

    num_pages: int
    num_used: int
    num_cached: int
    num_host_pages: int
    num_host_used: int
    num_hits: int
    num_host_hits: int
    num_evictions: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is left of a chain: its first `num_pages` pages. Taking them uses `num_idle` of the available pages up."""

    num_pages: int
    num_idle: int


class PagePool:
    """`num_pages` device pages and `host_pages` host pages, shared by all sequences of one model.

    `fingerprint` stands for the model's weights in the names of pages (see `block_hash`). Every operation costs
    O(pages it names). Owned by the engine's thread.
    """

    def __init__(self, num_pages: int, *, host_pages: int = 0, fingerprint: bytes = b"") -> None:
        self.num_pages = num_pages
        self.host_pages = host_pages
        self.fingerprint = fingerprint
        self._references = [0] * num_pages
        self._names: list[bytes | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}
        self._blank = list(range(num_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._host = HostTier(host_pages)
        self._to_host: list[tuple[int, int]] = []
        self._to_device: list[tuple[int, int]] = []
        self._num_hits = self._num_host_hits = self._num_evictions = 0

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out: blank and idle ones."""
        return len(self._blank) + len(self._idle)

    def find(self, chain: Sequence[bytes]) -> Prefix:
        """The longest beginning of `chain` that lies on the device or the host. Changes nothing."""
        num_pages = num_idle = 0
        for name in chain:
            page = self._page_of.get(name)
            if page is None and name not in self._host:
                break
            num_pages += 1
            num_idle += page is None or not self._references[page]
        return Prefix(num_pages, num_idle)

    def share(self, chain: Sequence[bytes]) -> list[int]:
        """A reference to the page of each name of `chain`, which `find` has found whole; copies from the host are
        planned where needed. Needs as many available pages as `find` said.
        """
        found = [self._page_of.get(name) for name in chain]
        # What was found is held before any page is taken: taking one may evict, here and on the host.
        host = {name: self._host.fetch(name) for name, page in zip(chain, found, strict=True) if page is None}
        for page in found:
            if page is not None:
                self._hold(page)
        pages = [
            self._restore(name, host[name]) if page is None else page for name, page in zip(chain, found, strict=True)
        ]
        self._num_hits += len(pages)
        self._num_host_hits += len(host)
        return pages

    def allocate(self, count: int) -> list[int]:
        """`count` pages of undefined contents, one reference each; idle pages give way, the longest unused first.

        Needs `count` available pages.
        """
        return [self._take() for _ in range(count)]

    def name(self, page: int, name: bytes) -> None:
        """Declares that `page`, in use, holds the contents `name` from now on. Where another page has the name
        already, this one stays nameless: tables are append-only, nothing is merged.
        """
        if self._page_of.setdefault(name, page) == page:
            self._names[page] = name

    def release(self, pages: Iterable[int]) -> None:
        """Gives one reference to each page back. Of a sequence's pages, name the last first: they are evicted first,
        and the beginning that others may share stays longest.
        """
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                if self._names[page] is None:
                    self._blank.append(page)
                else:
                    self._idle[page] = None

    def take_transfers(self) -> Transfers:
        """The copies planned since the last call; they have to be carried out before the next forward pass."""
        transfers = Transfers(tuple(self._to_host), tuple(self._to_device))
        self._to_host.clear()
        self._to_device.clear()
        self._host.settle()
        return transfers

    def statistics(self) -> PoolStatistics:
        """The pool at this moment."""
        return PoolStatistics(
            num_pages=self.num_pages,
            num_used=self.num_pages - self.num_available,
            num_cached=len(self._idle),
            num_host_pages=self.host_pages,
            num_host_used=len(self._host),
            num_hits=self._num_hits,
            num_host_hits=self._num_host_hits,
            num_evictions=self._num_evictions,
        )

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Asserts that `tables`, the page tables of all sequences, account for every reference, that every other page
        is blank or idle, and that names and pages agree. For tests: O(pages).
        """
        used = Counter(page for table in tables for page in table)
        assert self._references == [used[page] for page in range(self.num_pages)]
        assert sorted([*self._blank, *self._idle, *used]) == list(range(self.num_pages))
        assert self._page_of == {name: page for page, name in enumerate(self._names) if name is not None}
        assert all(self._names[page] is None for page in self._blank)
        assert all(self._names[page] is not None for page in self._idle)
        self._host.check_integrity(self.host_pages)

    def _hold(self, page: int) -> None:
        if not self._references[page]:
            del self._idle[page]
        self._references[page] += 1

    def _restore(self, name: bytes, host_page: int) -> int:
        page = self._take()
        self.name(page, name)
        self._to_device.append((host_page, page))
        return page

    def _take(self) -> int:
        if self._blank:
            page = self._blank.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._evict(page)
        self._references[page] = 1
        return page

    def _evict(self, page: int) -> None:
        name = self._names[page]
        assert name is not None
        self._names[page] = None
        del self._page_of[name]
        self._num_evictions += 1
        host_page = self._host.store(name)
        if host_page is not None:
            self._to_host.append((page, host_page))
