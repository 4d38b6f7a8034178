"""Encoders that encode alike have one index, whoever of them comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.errors import ConfigurationError
from policies.cache.semantic.contracts import Index
from policies.cache.semantic.index.shared import SharedIndexes
from tests.policies.cache.semantic.index.test_snapshot import QUESTION, make_index, numbers_in, vector_of


async def finds(index: Index, number: int) -> bool:
    found = await index.search(QUESTION, vector_of(number), 1)
    return [neighbour.id for neighbour in found] == [str(number)] and found[0].similarity > 0.99


def add(index: Index, number: int) -> None:
    index.add(QUESTION, str(number), vector_of(number))


@pytest.fixture
def share(tmp_path: Path) -> Callable[[], Index]:
    """Another user of the index that is saved as `vectors`."""
    indexes = SharedIndexes()
    return lambda: indexes.share("test", lambda: make_index(tmp_path / "vectors"))


async def test_all_of_them_find_and_keep_the_same(share: Callable[[], Index], tmp_path: Path) -> None:
    """The file is written until the last one has gone."""
    first, second = share(), share()
    await first.open()
    add(first, 1)
    await second.open()
    assert await finds(second, 1)
    add(second, 2)
    assert await finds(first, 2)
    await first.aclose()
    await first.aclose()
    add(second, 3)
    assert await finds(second, 3)
    await second.aclose()

    assert await numbers_in(tmp_path / "vectors") == [1, 2, 3]


async def test_who_comes_while_the_last_one_goes_misses_nothing(share: Callable[[], Index], tmp_path: Path) -> None:
    """It reads the file once that is written."""
    first, second = share(), share()
    await first.open()
    add(first, 1)
    await asyncio.gather(first.aclose(), second.open())
    assert await finds(second, 1)
    add(second, 2)
    await second.aclose()

    assert await numbers_in(tmp_path / "vectors") == [1, 2]


async def test_index_that_cannot_be_opened_is_tried_by_the_next(share: Callable[[], Index], tmp_path: Path) -> None:
    """And who has failed takes none away from others."""
    first, second = share(), share()
    (tmp_path / "vectors").mkdir()
    with pytest.raises(ConfigurationError):
        await first.open()
    (tmp_path / "vectors").rmdir()
    await second.open()
    await first.aclose()
    add(second, 1)
    await second.aclose()

    assert await numbers_in(tmp_path / "vectors") == [1]
