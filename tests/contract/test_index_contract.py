"""What every index of the semantic cache keeps, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from backends.clock import SystemClock
from policies.cache.redis_link import RedisLink
from policies.cache.semantic.contracts import Index, Neighbour, Question, Vector
from policies.cache.semantic.index.memory import MemoryIndex
from policies.cache.semantic.index.redis import RedisIndex
from tests.support.policy.vectors import DIMENSION, OTHER_SCOPE, FlatIndex, make_question, unit_vector, until
from tests.support.servers.redis_server import RedisServer, redis_policy, semantic_link

QUESTION = make_question()
TOLERANCE = 0.01
"""Eight bits a number are that exact."""


class Case:
    """An open index with nothing in it, and a way to wait for what was added."""

    def __init__(self, index: Index, link: RedisLink | None = None) -> None:
        self.index = index
        self._link = link

    def add(self, *numbers: int, question: Question = QUESTION) -> None:
        """Add vectors under their numbers."""
        for number in numbers:
            self.index.add(question, str(number), unit_vector(number))

    async def ids(self, vector: Vector, count: int = 5, question: Question = QUESTION) -> list[str]:
        """The names of the nearest, once everything is where it is kept."""
        return [neighbour.id for neighbour in await self.search(vector, count, question)]

    async def search(self, vector: Vector, count: int = 5, question: Question = QUESTION) -> list[Neighbour]:
        """The nearest, once everything is where it is kept."""
        if self._link is not None:
            await self._link.flush(5.0)
        return list(await self.index.search(question, vector, count))


@pytest.fixture(params=["flat", "memory", "vector sets", "stream"])
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    """Each index in turn. The flat one is what the others are compared with elsewhere."""
    if request.param in ("flat", "memory"):
        index = FlatIndex() if request.param == "flat" else _memory()
        await index.open()
        yield Case(index)
        await index.aclose()
        return
    async with RedisServer(vectors=request.param == "vector sets") as server:
        link = semantic_link(redis_policy(server.url, timeout="2s"), SystemClock())
        await link.open()
        shared = RedisIndex(
            *(link, _memory(), SystemClock()),
            origin="me",
            fingerprint="f",
            dimension=DIMENSION,
            ttl_s=lambda scope: 600.0,
        )
        await shared.open()
        await until(lambda: shared.statistics().kind != "unknown")
        yield Case(shared, link)
        await shared.aclose()
        await link.aclose()


def _memory() -> MemoryIndex:
    pytest.importorskip("faiss")
    return MemoryIndex(DIMENSION, "f", SystemClock())


async def test_search_finds_the_nearest_first_with_their_cosines(case: Case) -> None:
    """Similarities are those of the vectors themselves, and fall."""
    case.add(*range(100))
    wanted = unit_vector(1000)
    found = await case.search(wanted, 10)
    cosines = {str(number): float(unit_vector(number) @ wanted) for number in range(100)}
    best = sorted(cosines.values(), reverse=True)[:10]

    assert len(found) == 10
    for neighbour, cosine in zip(found, best, strict=True):
        assert neighbour.similarity == pytest.approx(cosine, abs=TOLERANCE)
        assert neighbour.similarity == pytest.approx(cosines[neighbour.id], abs=TOLERANCE)


async def test_search_for_a_stored_vector_and_its_opposite_gives_the_ends(case: Case) -> None:
    """1 and -1, never beyond."""
    case.add(3)
    (same,) = await case.search(unit_vector(3))
    (opposite,) = await case.search(-unit_vector(3))

    assert same.similarity == pytest.approx(1.0, abs=TOLERANCE)
    assert opposite.similarity == pytest.approx(-1.0, abs=TOLERANCE)
    assert max(abs(same.similarity), abs(opposite.similarity)) <= 1.0 + 1e-6


async def test_search_of_an_empty_group_finds_nothing(case: Case) -> None:
    """No group, no neighbours."""
    assert await case.search(unit_vector(1)) == []


@pytest.mark.parametrize(
    "other",
    [make_question(scope=OTHER_SCOPE), make_question(group=b"h" * 32)],
    ids=["other scope", "other group"],
)
async def test_search_never_crosses_groups(case: Case, other: Question) -> None:
    """The same vector in another group is not there."""
    case.add(1, 2, 3)
    case.add(4, question=other)

    assert await case.ids(unit_vector(1), question=other) == ["4"]
    assert "4" not in await case.ids(unit_vector(4))


async def test_add_of_a_known_id_replaces_its_vector(case: Case) -> None:
    """An id is one place."""
    case.add(1)
    case.index.add(QUESTION, "1", unit_vector(2))
    (found,) = await case.search(unit_vector(2))

    assert found.id == "1"
    assert found.similarity == pytest.approx(1.0, abs=TOLERANCE)


async def test_remove_takes_out_what_is_named_and_nothing_else(case: Case) -> None:
    """Unknown ids, ids of another group and ids named twice are nothing."""
    case.add(1, 2, 3)
    case.index.remove(QUESTION, ["2", "2", "99"])
    case.index.remove(make_question(group=b"h" * 32), ["3"])

    assert sorted(await case.ids(unit_vector(2))) == ["1", "3"]
    case.index.remove(QUESTION, ["1", "3"])
    assert await case.ids(unit_vector(2)) == []
    case.add(2)
    assert await case.ids(unit_vector(2)) == ["2"]


async def test_search_while_others_add_is_whole(case: Case) -> None:
    """Look-ups between writes see groups as they are, never torn."""
    case.add(0)

    async def look() -> None:
        for _ in range(20):
            found = await case.index.search(QUESTION, unit_vector(0), 3)
            assert not found or found[0].similarity <= 1.0 + 1e-6
            await asyncio.sleep(0)

    async def write() -> None:
        for number in range(1, 40):
            case.add(number)
            await asyncio.sleep(0)

    await asyncio.gather(look(), look(), write())

    assert len(await case.ids(unit_vector(0), 100)) == 40


async def test_aclose_twice_is_safe(case: Case) -> None:
    """Whoever closes need not know whether it is closed."""
    await case.index.aclose()
    await case.index.aclose()


async def test_add_of_a_vector_that_is_a_view_keeps_its_numbers(case: Case) -> None:
    """What a caller does with its array later changes nothing, and its layout does not matter."""
    wide = np.zeros((DIMENSION, 2), dtype=np.float32)
    wide[:, 0] = unit_vector(5)
    case.index.add(QUESTION, "5", wide[:, 0].copy() if isinstance(case.index, FlatIndex) else wide[:, 0])
    (found,) = await case.search(unit_vector(5))

    assert found.similarity == pytest.approx(1.0, abs=TOLERANCE)
