"""One index for all encoders that encode alike, however their settings differ otherwise: its file has one writer, and
what one of them has stored the others find.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from policies.cache.semantic.contracts import Index, Neighbour, Question, Vector


class SharedIndexes:
    """By the fingerprints of encoders."""

    def __init__(self) -> None:
        self._held: defaultdict[str, _Held] = defaultdict(_Held)

    def share(self, fingerprint: str, make: Callable[[], Index]) -> Index:
        """The index of that fingerprint, which is open while anybody has it open; `make` it where nobody has."""
        return _Share(self._held[fingerprint], make)


class _Held:
    """An index, and by how many it is open."""

    def __init__(self) -> None:
        self._index: Index | None = None
        self._num_open = 0
        # Who comes while the last one goes waits until its file is written.
        self._changing = asyncio.Lock()

    async def open(self, make: Callable[[], Index]) -> Index:
        async with self._changing:
            if self._index is None:
                index = make()
                try:
                    await index.open()
                except BaseException:
                    await index.aclose()
                    raise
                self._index = index
            self._num_open += 1
            return self._index

    async def aclose(self) -> None:
        async with self._changing:
            self._num_open -= 1
            if not self._num_open and self._index is not None:
                index, self._index = self._index, None
                await index.aclose()


class _Share:
    """An `Index`."""

    def __init__(self, held: _Held, make: Callable[[], Index]) -> None:
        self._held = held
        self._make = make
        self._index: Index | None = None
        self._is_open = False

    async def open(self) -> None:
        self._index = await self._held.open(self._make)
        self._is_open = True

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._held.aclose()

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        assert self._index is not None, "an index is opened before it is used"
        return await self._index.search(question, vector, count)

    def add(self, question: Question, id: str, vector: Vector) -> None:
        assert self._index is not None, "an index is opened before it is used"
        self._index.add(question, id, vector)

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        # Answers go at any time.
        if self._index is not None:
            self._index.remove(question, ids)
