"""Which page contents lie in host memory: the second, larger tier of the prefix cache. Bookkeeping only.

Contents stay here when they are brought back to the device, so that evicting them again costs no copy.
"""

from __future__ import annotations

from collections import OrderedDict


class HostTier:
    """Least recently used contents of `num_pages` host pages, by name.

    A host page that a copy of the running step touches is kept until `settle`: copies to the host go first, so one
    that reused it would overwrite what a copy to the device is still to read.
    """

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, -1, -1))
        self._pages: OrderedDict[bytes, int] = OrderedDict()
        self._touched: set[int] = set()

    def __contains__(self, name: bytes) -> bool:
        return name in self._pages

    def __len__(self) -> int:
        """Host pages in use."""
        return len(self._pages)

    def fetch(self, name: bytes) -> int:
        """The host page of `name`, to be read in this step. Raises KeyError where it is not here."""
        page = self._pages[name]
        self._pages.move_to_end(name)
        self._touched.add(page)
        return page

    def store(self, name: bytes) -> int | None:
        """The host page to copy `name` into; None where it is here already, or where no host page can be had."""
        if name in self._pages:
            self._pages.move_to_end(name)
            return None
        if self._free:
            page = self._free.pop()
        else:
            oldest = next(iter(self._pages), None)
            if oldest is None or self._pages[oldest] in self._touched:
                return None
            page = self._pages.pop(oldest)
        self._pages[name] = page
        self._touched.add(page)
        return page

    def settle(self) -> None:
        """The step's copies are on their way: every host page may be reused by the next step."""
        self._touched.clear()

    def check_integrity(self, num_pages: int) -> None:
        """Asserts that each of the `num_pages` host pages is free or holds one content."""
        assert sorted([*self._free, *self._pages.values()]) == list(range(num_pages))
