"""What was spent under names that are no longer counted one by one, in memory of a fixed size."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

_NUM_ROWS = 4
_NUM_CELLS = 2**16
"""A row; 8 bytes each, so 2 MiB in all."""
_MOST = 2**63 - 1


class SpentSketch:
    """Says of a name at least what was spent under it, and seldom more.

    A Count-Min sketch (Cormode and Muthukrishnan, 2005) with conservative update (Estan and Varghese, 2002): an amount
    is put into a cell of each row, the largest counts there, and a name has the smallest of its cells.
    """

    def __init__(self, salt: bytes) -> None:
        """`salt`: at most 64 bytes that nobody knows who chooses names, or they could choose those of a cell."""
        self._salt = salt
        self._cells = array("Q", bytes(8 * _NUM_ROWS * _NUM_CELLS))

    def put(self, name: str, spent: int) -> None:
        """All that was spent under a name by now, what `most` has said of it included."""
        for at in self._places(name):
            self._cells[at] = max(self._cells[at], min(spent, _MOST))

    def most(self, name: str) -> int:
        """What was spent under it at most."""
        return min(self._cells[at] for at in self._places(name))

    def _places(self, name: str) -> Iterator[int]:
        digest = blake2b(name.encode(), digest_size=4 * _NUM_ROWS, key=self._salt).digest()
        for row in range(_NUM_ROWS):
            yield row * _NUM_CELLS + int.from_bytes(digest[4 * row : 4 * row + 4], "big") % _NUM_CELLS
