"""The entries of one group: found by looking at all of them, or through a graph where they are many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import count as count_up
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.contracts import Neighbour, Vector
from policies.cache.semantic.index.rows import PIECE, Codec, Codes, FlatTable

_NUM_LINKS = 16
_EF_CONSTRUCTION = 100
_EF_SEARCH = 64
"""Recall 0.99 at 10,000 and 1.00 at 100,000 vectors of 384 numbers, 0.2 ms (measured, one thread)."""
_MAX_DEAD_SHARE = 0.3
_FEW = 32
"""So few ids are found faster by looking than kept in a table."""


class FlatGroup:
    """Exact; entries come and go in constant time."""

    __slots__ = ("_ids", "_rows", "_table")

    def __init__(self, codec: Codec) -> None:
        self._ids: list[str] = []
        self._rows: dict[str, int] | None = None
        self._table = FlatTable(codec)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: str) -> bool:
        rows = self._rows
        return id in self._ids if rows is None else id in rows

    def __iter__(self) -> Iterator[str]:
        """Roughly in the order in which they were added."""
        return iter(self._ids if self._rows is None else self._rows)

    @property
    def is_worn(self) -> bool:
        """Never: nothing dead is kept."""
        return False

    def add(self, ids: Sequence[str], codes: Codes) -> None:
        """Entries that are not there yet."""
        self._table.add(codes)
        first = len(self._ids)
        self._ids.extend(ids)
        if self._rows is not None:
            self._rows.update(zip(ids, count_up(first)))
        elif len(self._ids) > _FEW:
            self._rows = dict(zip(self._ids, count_up()))

    def remove(self, id: str) -> bool:
        """Whether it was there."""
        if id not in self:
            return False
        row = self._ids.index(id) if self._rows is None else self._rows.pop(id)
        self._table.remove(row)
        # In this order: another thread that asks whether the last entry is there must never be told that it is not.
        last = self._ids[-1]
        self._ids[row] = last
        self._ids.pop()
        if self._rows is not None and last != id:
            self._rows[last] = row
        return True

    def codes(self, ids: Sequence[str]) -> Codes:
        """The codes of entries that are there."""
        rows = self._rows
        return self._table.codes(list(map(self._ids.index if rows is None else rows.__getitem__, ids)))

    def search(self, vector: Vector, count: int, start: int) -> tuple[list[Neighbour], int | None]:
        """The nearest of a piece of the rows, nearest first, and where the next piece begins."""
        similarities, rows = self._table.search(vector, count, start)
        stop = start + PIECE
        return _neighbours(self._ids, similarities, rows), stop if stop < len(self._ids) else None


class GraphGroup:
    """HNSW (Malkov and Yashunin 2016, as in FAISS). It cannot forget: what is removed is passed over from then on."""

    __slots__ = ("_codec", "_graph", "_ids", "_is_alive", "_living", "_rows")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._graph: Any = codec.graph_index(_NUM_LINKS)
        self._graph.hnsw.efConstruction = _EF_CONSTRUCTION
        self._graph.hnsw.efSearch = _EF_SEARCH
        self._ids: list[str] = []
        self._rows: dict[str, int] = {}
        # One bit a row, and what FAISS reads them by: made when they move only, which takes a fifth of a search's time.
        self._is_alive: NDArray[np.uint8] = np.zeros(1024, np.uint8)
        self._living = self._living_alone()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: str) -> bool:
        return id in self._rows

    def __iter__(self) -> Iterator[str]:
        """In the order in which they were added."""
        return iter(self._rows)

    @property
    def is_worn(self) -> bool:
        """So much of it is dead that it should be built anew."""
        return len(self._ids) - len(self._rows) > _MAX_DEAD_SHARE * len(self._ids)

    def add(self, ids: Sequence[str], codes: Codes) -> None:
        """Entries that are not there yet. Some 0.5 ms each: many at a time belong in another thread."""
        self._graph.add(self._codec.decode(codes))
        first = len(self._ids)
        self._ids.extend(ids)
        num_bytes = math.ceil(len(self._ids) / 8)
        if num_bytes > len(self._is_alive):
            self._is_alive = np.concatenate([self._is_alive, np.zeros(num_bytes, np.uint8)])
            self._living = self._living_alone()
        self._rows.update(zip(ids, count_up(first)))
        for row in range(first, len(self._ids)):
            self._is_alive[row >> 3] |= 1 << (row & 7)

    def remove(self, id: str) -> bool:
        """Whether it was there."""
        row = self._rows.pop(id, None)
        if row is None:
            return False
        self._is_alive[row >> 3] &= ~(1 << (row & 7)) & 0xFF
        return True

    def codes(self, ids: Sequence[str]) -> Codes:
        """The codes of entries that are there."""
        rows = np.array(list(map(self._rows.__getitem__, ids)), np.int64)
        vectors: NDArray[np.float32] = self._graph.reconstruct_batch(rows)
        return self._codec.encode(vectors)

    def search(self, vector: Vector, count: int, start: int) -> tuple[list[Neighbour], int | None]:
        """The nearest of all, nearest first; there is no next piece."""
        params = self._living if len(self._rows) < len(self._ids) else None
        similarities, rows = self._graph.search(vector[None], count, params=params)
        return _neighbours(self._ids, similarities[0], rows[0]), None

    def _living_alone(self) -> Any:
        """How to search so that only living rows are among the `ef` that are chosen from: the dead cost no answers."""
        faiss = self._codec.faiss
        is_alive = faiss.IDSelectorBitmap(len(self._is_alive), faiss.swig_ptr(self._is_alive))
        return faiss.SearchParametersHNSW(efSearch=_EF_SEARCH, sel=is_alive)


def _neighbours(ids: Sequence[str], similarities: NDArray[np.float32], rows: NDArray[np.int64]) -> list[Neighbour]:
    """What FAISS has found; rows of -1 are nothing. Rounded vectors may be a little longer than 1, cosines are not."""
    return [
        Neighbour(ids[row], similarity if similarity < 1.0 else 1.0)
        for similarity, row in zip(similarities.tolist(), rows.tolist(), strict=True)
        if row >= 0
    ]
