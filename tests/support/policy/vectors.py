"""Questions, stored answers and vectors for tests of the semantic cache's stores, and an index that cannot be wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from policies.cache.entry import AnswerForm, Entry
from policies.cache.semantic.contracts import Neighbour, Question, StoredAnswer, Vector

SCOPE = bytes(range(32))
OTHER_SCOPE = bytes(range(1, 33))
DIMENSION = 48


def make_question(text: str = "what?", *, scope: bytes = SCOPE, group: bytes = b"g" * 32) -> Question:
    """A question; its group is its scope's."""
    return Question(scope, bytes(left ^ right for left, right in zip(scope, group, strict=True)), text)


def make_answer(
    id: str,
    expires: float,
    *,
    body: bytes = b"{}",
    answer_id: str | None = None,
    question: Question | None = None,
    model: str = "model",
    tags: tuple[str, ...] = (),
) -> StoredAnswer:
    """A stored answer; what is not named is of no interest."""
    entry = Entry(AnswerForm.JSON, body, b"application/json", 1.0)
    return StoredAnswer(id, question or make_question(), answer_id or f"says {id}", entry, model, "key", expires, tags)


def unit_vector(*seed: int, dimension: int = DIMENSION) -> Vector:
    """A vector of length 1, the same for the same seed."""
    vector = np.random.default_rng(seed).normal(size=dimension)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


async def until(is_so: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Wait for something that happens elsewhere."""
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.005)


class FlatIndex:
    """An `Index` that compares with every vector of the group."""

    def __init__(self) -> None:
        self.groups: dict[bytes, dict[str, Vector]] = {}
        self.is_open = False

    async def open(self) -> None:
        """Begin."""
        self.is_open = True

    async def aclose(self) -> None:
        """End, forgetting everything."""
        self.is_open = False
        self.groups.clear()

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        """Up to `count` nearest, nearest first."""
        group = self.groups.get(question.group, {})
        found = [Neighbour(name, float(vector @ other)) for name, other in group.items()]
        return sorted(found, key=lambda neighbour: -neighbour.similarity)[:count]

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Found from now on."""
        self.groups.setdefault(question.group, {})[id] = vector

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """No longer found."""
        for name in ids:
            self.groups.get(question.group, {}).pop(name, None)
