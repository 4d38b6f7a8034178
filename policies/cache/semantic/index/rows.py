"""How vectors are written down in memory, as float16 or a byte a number, and a flat table of them, searched whole.

FAISS is handed in, since only a gateway with a semantic cache loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.contracts import Vector

Precision = Literal["fp16", "sq8"]
Codes = NDArray[np.uint8]
"""[vectors, bytes of a vector]."""

NUMBER_BYTES: dict[Precision, int] = {"fp16": 2, "sq8": 1}
_NUM_STEPS = 255
_SMALL = 32
"""Up to here a table is a plain array: most hold one vector, and numpy is no slower."""
PIECE = 16_384
"""Rows that one search looks at: under a millisecond at 384 numbers, one thread."""


class Codec:
    """Vectors to bytes and back. sq8: 255 equal steps from -`span` to `span`, what lies beyond is cut off there."""

    def __init__(self, faiss: Any, dimension: int, precision: Precision, span: float) -> None:
        self.faiss = faiss
        self.dimension = dimension
        self.precision = precision
        self.span = span
        self.num_bytes = dimension * NUMBER_BYTES[precision]

    @staticmethod
    def span_for(vector: Vector) -> float:
        """A power of two that is no less than twice the largest number of a first vector: later ones are alike."""
        return min(1.0, float(2.0 ** np.ceil(np.log2(2 * np.abs(vector).max()))))

    def encode(self, vectors: NDArray[np.float32]) -> Codes:
        """[n, dimension] -> [n, bytes]."""
        if self.precision == "fp16":
            return np.ascontiguousarray(vectors, np.float16).view(np.uint8)
        steps = (vectors / self.span + 1) * (_NUM_STEPS / 2)
        return np.clip(steps, 0, _NUM_STEPS).astype(np.uint8)

    def decode(self, codes: Codes) -> NDArray[np.float32]:
        """[n, bytes] -> [n, dimension]."""
        if self.precision == "fp16":
            return codes.view(np.float16).astype(np.float32)
        return ((codes + np.float32(0.5)) * np.float32(2 * self.span / _NUM_STEPS) - np.float32(self.span)).astype(
            np.float32
        )

    def flat_index(self) -> Any:
        """An empty FAISS index of such codes, searched whole."""
        faiss = self.faiss
        index = faiss.IndexScalarQuantizer(self.dimension, self._kind(), faiss.METRIC_INNER_PRODUCT)
        self._train(index)
        return index

    def graph_index(self, num_links: int) -> Any:
        """An empty FAISS HNSW graph over such codes."""
        faiss = self.faiss
        graph = faiss.IndexHNSWSQ(self.dimension, self._kind(), num_links, faiss.METRIC_INNER_PRODUCT)
        self._train(faiss.downcast_index(graph.storage))
        graph.is_trained = True
        return graph

    def _kind(self) -> int:
        quantizer = self.faiss.ScalarQuantizer
        kind: int = quantizer.QT_fp16 if self.precision == "fp16" else quantizer.QT_8bit_uniform
        return kind

    def _train(self, index: Any) -> None:
        if self.precision == "sq8":
            # Training would fit the range to a table's first vectors; one range for all makes tables comparable.
            span = np.array([-self.span, 2 * self.span], np.float32)
            self.faiss.copy_array_to_vector(span, index.sq.trained)
        index.is_trained = True


class FlatTable:
    """Rows of codes. Removing moves the last row into the hole, so there are never dead rows."""

    __slots__ = ("_codec", "_codes", "_index")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._codes: Codes = np.empty((0, codec.num_bytes), np.uint8)
        self._index: Any = None

    def __len__(self) -> int:
        return len(self._codes) if self._index is None else int(self._index.ntotal)

    def add(self, codes: Codes) -> None:
        """Append [n, bytes]."""
        if self._index is None and len(self) + len(codes) <= _SMALL:
            self._codes = np.concatenate([self._codes, codes])
            return
        if self._index is None:
            self._index = self._codec.flat_index()
            if len(self._codes):
                self._index.add_sa_codes(self._codes)
            self._codes = self._codes[:0].copy()
        self._index.add_sa_codes(np.ascontiguousarray(codes))

    def remove(self, row: int) -> None:
        """The last row takes that place."""
        last = len(self) - 1
        if self._index is None:
            self._codes[row] = self._codes[last]
            self._codes = self._codes[:last].copy()
            return
        codes = self._view()
        codes[row] = codes[last]
        # The view must not outlive a change of size.
        del codes
        self._index.codes.resize(last * self._codec.num_bytes)
        self._index.ntotal = last

    def codes(self, rows: Sequence[int]) -> Codes:
        """A copy of some rows."""
        found: Codes = (self._codes if self._index is None else self._view())[np.asarray(rows, np.int64)]
        return found

    def search(self, vector: Vector, count: int, start: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The nearest of the `PIECE` rows from `start`: cosines, falling, and rows."""
        if self._index is None:
            similarities = self._codec.decode(self._codes) @ vector
            rows = np.argsort(-similarities, kind="stable")[:count]
            return similarities[rows], rows
        faiss = self._codec.faiss
        stop = min(start + PIECE, len(self))
        is_all = start == 0 and stop == len(self)
        params = None if is_all else faiss.SearchParameters(sel=faiss.IDSelectorRange(start, stop))
        similarities, rows = self._index.search(vector[None], min(count, stop - start), params=params)
        return similarities[0], rows[0]

    def _view(self) -> Codes:
        num_bytes = self._codec.num_bytes
        view: Codes = self._codec.faiss.rev_swig_ptr(self._index.codes.data(), len(self) * num_bytes)
        return view.reshape(-1, num_bytes)
