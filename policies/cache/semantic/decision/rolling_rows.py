"""The last so many rows of numbers, in one piece of memory that grows with use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FIRST_ROWS = 64


class RollingRows:
    """Rows of `width` float32 numbers, the oldest forgotten beyond `capacity`."""

    def __init__(self, capacity: int, width: int) -> None:
        self._capacity = capacity
        self._rows = np.empty((_FIRST_ROWS, width), np.float32)
        self._start = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, row: tuple[float, ...]) -> None:
        """Add a row, forget the oldest where there are too many."""
        if self._end == len(self._rows):
            self._make_room()
        self._rows[self._end] = row
        self._end += 1
        if len(self) > self._capacity:
            self._start += 1

    def clear(self) -> None:
        """Forget every row."""
        self._start = self._end = 0

    @property
    def rows(self) -> NDArray[np.float32]:
        """[rows, width], oldest first. A view: good until the next change."""
        return self._rows[self._start : self._end]

    def dump(self) -> bytes:
        """The rows, little-endian."""
        return self.rows.astype("<f4").tobytes()

    def load(self, dumped: bytes) -> None:
        """Take the place of what is here. Raises: ValueError where it is not so many whole, finite rows."""
        width = self._rows.shape[1]
        rows = np.frombuffer(dumped, "<f4").reshape(-1, width)
        if len(rows) > self._capacity or not np.isfinite(rows).all():
            raise ValueError(f"{len(rows)} rows of {width} numbers do not fit a window of {self._capacity}")
        self._rows = np.concatenate([rows, np.empty((_FIRST_ROWS, width), "<f4")]).astype(np.float32)
        self._start, self._end = 0, len(rows)

    def _make_room(self) -> None:
        # At twice the capacity the rows move to the front instead, once for as many rows as were added.
        kept = self.rows
        grown = np.empty((min(2 * max(len(kept), _FIRST_ROWS), 2 * self._capacity), kept.shape[1]), np.float32)
        grown[: len(kept)] = kept
        self._rows, self._start, self._end = grown, 0, len(kept)
