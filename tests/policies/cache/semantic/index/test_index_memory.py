"""The index in memory against brute force: what is found, what never is, graphs in the making, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backends.clock import SystemClock
from policies.cache.semantic.contracts import Question

faiss = pytest.importorskip("faiss")

from policies.cache.semantic.index.group import GraphGroup  # noqa: E402
from policies.cache.semantic.index.memory import MemoryIndex  # noqa: E402
from policies.cache.semantic.index.rows import Codec, Precision  # noqa: E402

DIMENSION = 16
TOLERANCE = {"fp16": 1e-3, "sq8": 0.02}
"""sq8: half a step of 2/255 on each of 16 numbers, all of them to the same side."""


def question(group: int) -> Question:
    """A question of that group."""
    return Question(scope=bytes(32), group=group.to_bytes(32, "big"), text="")


def unit_vectors(seed: int, count: int, dimension: int = DIMENSION) -> NDArray[np.float32]:
    """[count, dimension] random directions."""
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def make_index(**options: Any) -> MemoryIndex:
    """An index of unit vectors of 16 numbers."""
    return MemoryIndex(DIMENSION, "test", SystemClock(), **options)


def nearest(stored: dict[str, NDArray[np.float32]], vector: NDArray[np.float32], count: int) -> list[float]:
    """The largest cosines, by brute force."""
    return sorted((float(found @ vector) for found in stored.values()), reverse=True)[:count]


async def check(index: MemoryIndex, groups: dict[int, dict[str, NDArray[np.float32]]], tolerance: float) -> None:
    """Every group answers as brute force over its own entries does."""
    for group in range(4):
        stored = groups.get(group, {})
        for vector in unit_vectors(group, 2):
            found = await index.search(question(group), vector, 5)
            expected = nearest(stored, vector, 5)
            assert {neighbour.id for neighbour in found} <= set(stored)
            assert len({neighbour.id for neighbour in found}) == len(found) == len(expected)
            assert [neighbour.similarity for neighbour in found] == pytest.approx(expected, abs=tolerance)
            for neighbour in found:
                assert neighbour.similarity == pytest.approx(float(stored[neighbour.id] @ vector), abs=tolerance)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove"]),
        st.integers(0, 3),
        st.integers(0, 60),
        st.integers(0, 2**32 - 1),
    ),
    max_size=150,
)


@pytest.mark.parametrize("precision", ["fp16", "sq8"])
@settings(max_examples=40, deadline=None)
@given(steps=steps, max_flat=st.sampled_from([8, 40, 1000]))
def test_search_is_brute_force_over_the_group(
    precision: Precision, steps: list[tuple[str, int, int, int]], max_flat: int
) -> None:
    """Any adding and removing, tables and graphs, before and after a restart: the same neighbours as brute force."""

    async def run(folder: Path) -> None:
        index = make_index(precision=precision, max_flat=max_flat, snapshot=folder / "vectors")
        await index.open()
        groups: dict[int, dict[str, NDArray[np.float32]]] = {}
        for action, group, number, seed in steps:
            stored = groups.setdefault(group, {})
            if action == "add":
                [vector] = unit_vectors(seed, 1)
                index.add(question(group), f"id {number}", vector)
                stored[f"id {number}"] = vector
            else:
                index.remove(question(group), [f"id {number}", "unknown"])
                stored.pop(f"id {number}", None)
            await asyncio.sleep(0)
        await check(index, groups, TOLERANCE[precision])
        await index.wait_built()
        await check(index, groups, TOLERANCE[precision])
        assert index.statistics().entries == sum(map(len, groups.values()))
        await index.aclose()

        again = make_index(precision=precision, max_flat=max_flat, snapshot=folder / "vectors")
        await again.open()
        await check(again, groups, TOLERANCE[precision])
        await again.wait_built()
        await check(again, groups, TOLERANCE[precision])
        assert again.statistics().entries == sum(map(len, groups.values()))
        await again.aclose()

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


@pytest.mark.parametrize("precision", ["fp16", "sq8"])
async def test_graph_has_recall_and_keeps_it_when_worn(precision: Precision) -> None:
    """HNSW against brute force: no less than 0.95 of the 5 nearest, also with removed entries, and after a rebuild."""
    vectors = unit_vectors(1, 3000, 64)
    index = MemoryIndex(64, "test", SystemClock(), precision=precision, max_flat=500)
    await index.open()
    for number, vector in enumerate(vectors):
        index.add(question(0), str(number), vector)
    await index.wait_built()
    assert index.statistics().graphs == 1
    asked = unit_vectors(2, 100, 64)

    async def recall(alive: range) -> float:
        similarities = asked @ vectors[alive.start : alive.stop].T
        num_found = 0
        for scores, vector in zip(similarities, asked, strict=True):
            expected = {str(alive.start + row) for row in np.argsort(-scores)[:5]}
            num_found += len(expected & {found.id for found in await index.search(question(0), vector, 5)})
        return num_found / (5 * len(asked))

    # One byte a number mixes up neighbours that differ by less than its steps.
    least = 0.95 if precision == "fp16" else 0.90
    assert await recall(range(3000)) >= least
    index.remove(question(0), [str(number) for number in range(850)])
    assert index._groups[question(0).group].is_worn is False
    assert await recall(range(850, 3000)) >= least
    index.remove(question(0), [str(number) for number in range(850, 1000)])
    await index.wait_built()
    assert await recall(range(1000, 3000)) >= least
    await index.aclose()


def test_graph_that_has_outgrown_its_bits_still_tells_the_living_from_the_dead() -> None:
    """Beyond 8,192 rows the bits move: what was removed before and after stays so, what came after is found."""
    codec = Codec(faiss, 4, "fp16", 1.0)
    graph = GraphGroup(codec)
    vectors = unit_vectors(3, 9000, 4)
    removed = [10, 8_500]
    for start, stop in ((0, 8000), (8000, 9000)):
        graph.add([str(row) for row in range(start, stop)], codec.encode(vectors[start:stop]))
        graph.remove(str(removed[start // 8000]))

    for row in (*removed, 8_999):
        found, _ = graph.search(vectors[row], 5, 0)
        assert (str(row) in {neighbour.id for neighbour in found}) is (row not in removed)
        assert len(found) == 5


async def test_search_during_a_build_is_exact_and_leaves_nothing_out() -> None:
    """While a graph is made, entries come, go and change, and every search is right."""
    vectors = dict(enumerate(unit_vectors(3, 1200)))
    index = make_index(max_flat=300)
    await index.open()
    for number in range(1000):
        index.add(question(0), str(number), vectors[number])
    changed = unit_vectors(4, 50)
    for number in range(50):
        await asyncio.sleep(0.001)
        index.add(question(0), str(1000 + number), vectors[1000 + number])
        index.remove(question(0), [str(number)])
        del vectors[number]
        index.add(question(0), str(100 + number), changed[number])
        vectors[100 + number] = changed[number]
        [found] = await index.search(question(0), changed[number], 1)
        assert found.id == str(100 + number)
    await index.wait_built()

    stored = {str(number): vector for number, vector in vectors.items() if number < 1050}
    assert index.statistics().entries == len(stored)
    assert set(index._groups[question(0).group]) == set(stored)
    for number in (60, 105, 149, 500, 1049):
        [found] = await index.search(question(0), stored[str(number)], 1)
        assert found.id == str(number)
        assert found.similarity == pytest.approx(1.0, abs=TOLERANCE["fp16"])
    await index.aclose()


async def test_search_never_crosses_groups() -> None:
    """The same vector in another group does not exist here."""
    [vector] = unit_vectors(0, 1)
    index = make_index()
    await index.open()
    index.add(question(1), "theirs", vector)

    assert await index.search(question(2), vector, 5) == ()
    index.remove(question(2), ["theirs"])
    assert [found.id for found in await index.search(question(1), vector, 5)] == ["theirs"]
    await index.aclose()


async def test_search_of_a_large_table_gives_way_to_others() -> None:
    """A table that still waits for its graph is searched in pieces, and the answer is whole."""
    vectors = unit_vectors(5, 40_000)
    index = make_index(max_flat=100_000)
    await index.open()
    for number, vector in enumerate(vectors):
        index.add(question(0), str(number), vector)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(count_turns())
    found = await index.search(question(0), vectors[39_999], 3)
    other.cancel()

    assert turns >= 1
    assert [neighbour.similarity for neighbour in found] == pytest.approx(
        nearest(dict(enumerate(vectors)), vectors[39_999], 3),  # type: ignore[arg-type]
        abs=TOLERANCE["fp16"],
    )
    await index.aclose()


async def test_add_beyond_the_bound_takes_from_the_group_least_used() -> None:
    """The group that was used longest ago gives up its entries, its first one first."""
    vectors = unit_vectors(6, 8)
    index = make_index(max_entries=6)
    await index.open()
    for number in range(3):
        index.add(question(0), f"a{number}", vectors[number])
        index.add(question(1), f"b{number}", vectors[number])
    await index.search(question(0), vectors[0], 1)

    index.add(question(2), "c0", vectors[6])
    index.add(question(2), "c1", vectors[7])

    [left] = await index.search(question(1), vectors[2], 9)
    assert left.id != "b0"
    assert len(await index.search(question(0), vectors[0], 9)) == 3
    assert (index.statistics().entries, index.statistics().evicted) == (6, 2)
    await index.aclose()


@pytest.mark.parametrize("precision", ["fp16", "sq8"])
def test_codec_round_trip_is_stable(precision: Precision) -> None:
    """What is decoded is encoded to the same bytes, and is near; what lies beyond the span is cut off."""
    vectors = unit_vectors(7, 200, 384)
    codec = Codec(faiss, 384, precision, Codec.span_for(vectors[0]))
    codes = codec.encode(vectors)

    assert codec.encode(codec.decode(codes)).tobytes() == codes.tobytes()
    assert codec.decode(codes) == pytest.approx(vectors, abs=codec.span / 255 + 1e-6)
    assert np.abs((codec.decode(codes) * vectors).sum(axis=1) - 1).max() < 0.01


@pytest.fixture(autouse=True)
def _no_stray_threads() -> Iterator[None]:
    """An index that is closed has ended its thread."""
    import threading

    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("semantic-index")]
