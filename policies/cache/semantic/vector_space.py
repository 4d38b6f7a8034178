"""An encoder and the index of its vectors: opened and closed together, shared by every route that encodes alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.cache.semantic.contracts import Index, Question, ReadingEncoder


class VectorSpace:
    """`make_index` is called once the encoder knows its dimension."""

    def __init__(self, encoder: ReadingEncoder, make_index: Callable[[ReadingEncoder], Index]) -> None:
        self.encoder = encoder
        self._make_index = make_index
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """Where its vectors are found; once it is open."""
        assert self._index is not None, "a space is opened before it is used"
        return self._index

    def forget(self, question: Question, ids: Sequence[str]) -> None:
        """These entries are gone. Nothing happens where the index is not open, or knows none of them."""
        if self._index is not None:
            self._index.remove(question, ids)

    async def open(self) -> None:
        """Load the model, then the index. Raises: ConfigurationError."""
        await self.encoder.open()
        self._index = self._make_index(self.encoder)
        await self._index.open()

    async def aclose(self) -> None:
        """Write what is unwritten, release both. Safe to call twice."""
        if self._index is not None:
            await self._index.aclose()
        await self.encoder.aclose()
