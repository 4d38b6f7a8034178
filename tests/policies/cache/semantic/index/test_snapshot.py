"""The index on disk: what a restart finds, what a kill or a bad file costs, and what is never lost."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.clock import SystemClock
from backends.errors import ConfigurationError
from policies.cache.semantic.contracts import Question
from policies.cache.semantic.index.snapshot import Record, Snapshot, pack_record
from tests.support.clock import FakeClock
from tests.support.small_disk import make_read_only, small_disk

pytest.importorskip("faiss")

from policies.cache.semantic.index.memory import MemoryIndex

DIMENSION = 8
QUESTION = Question(scope=bytes(32), group=bytes(32), text="")


def vector_of(number: int) -> NDArray[np.float32]:
    """The vector that an entry of that number always has."""
    found = np.random.default_rng(number).standard_normal(DIMENSION).astype(np.float32)
    vector: NDArray[np.float32] = found / np.linalg.norm(found)
    return vector


def make_index(path: Path, fingerprint: str = "test", **options: Any) -> MemoryIndex:
    """An index that is saved at `path`."""
    clock = options.pop("clock", None) or SystemClock()
    return MemoryIndex(DIMENSION, fingerprint, clock, snapshot=path, **options)


async def fill(path: Path, numbers: Sequence[int]) -> None:
    """Leave a file with these entries."""
    index = make_index(path)
    await index.open()
    for number in numbers:
        index.add(QUESTION, str(number), vector_of(number))
    await index.aclose()


async def numbers_in(path: Path, **options: Any) -> list[int]:
    """What an index finds there; each entry with its own vector."""
    index = make_index(path, **options)
    await index.open()
    group = index._groups.get(QUESTION.group)
    numbers = sorted(map(int, group)) if group is not None else []
    for number in numbers:
        [found] = await index.search(QUESTION, vector_of(number), 1)
        assert found.id == str(number)
        assert found.similarity == pytest.approx(1.0, abs=1e-3)
    await index.aclose()
    return numbers


def fill_disk(snapshot: Snapshot) -> None:
    """The next write finds no room."""
    assert snapshot._file is not None
    snapshot._file.close()
    snapshot._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115  # the snapshot closes it


def aside(path: Path) -> list[Path]:
    """The files that were set aside."""
    return sorted(path.parent.glob(f"{path.name}.aside-*"))


async def test_restart_finds_what_was_there(tmp_path: Path) -> None:
    """Entries, and not those that were removed; twice, since the file goes on."""
    path = tmp_path / "new" / "vectors"
    await fill(path, range(50))
    index = make_index(path)
    await index.open()
    index.remove(QUESTION, [str(number) for number in range(10)])
    index.add(QUESTION, "77", vector_of(77))
    await index.aclose()

    assert await numbers_in(path) == [*range(10, 50), 77]
    assert path.stat().st_mode & 0o077 == 0


async def test_entries_are_on_disk_after_an_interval(tmp_path: Path) -> None:
    """Without a close: what was added before the last interval is there."""
    clock = FakeClock()
    index = make_index(tmp_path / "vectors", clock=clock, save_interval_s=2.0)
    await index.open()
    index.add(QUESTION, "1", vector_of(1))
    await clock.advance(2.0)
    while not (tmp_path / "vectors").exists() or (tmp_path / "vectors").stat().st_size < 100:
        await asyncio.sleep(0.005)
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "vectors").read_bytes())

    assert await numbers_in(copy) == [1]
    await index.aclose()


async def test_file_of_gone_entries_is_rewritten(tmp_path: Path) -> None:
    """Entries that come and go do not make the file grow for ever, and a rewrite loses none."""
    path = tmp_path / "vectors"
    clock = FakeClock()
    index = make_index(path, clock=clock, max_entries=100)
    await index.open()
    sizes = []
    for start in range(0, 20_000, 1000):
        for number in range(start, start + 1000):
            index.add(QUESTION, str(number), vector_of(number))
        await index._save()
        sizes.append(path.stat().st_size)
    await index.aclose()

    assert max(sizes) < 3 * sizes[1]
    assert await numbers_in(path, max_entries=100) == list(range(19_900, 20_000))


@pytest.mark.parametrize("num_bytes", [1, 7, 8, 9, 60, 76])
async def test_torn_end_costs_the_last_record_only(
    tmp_path: Path, num_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that was cut off anywhere: what came before is found, and what comes after is kept again."""
    path = tmp_path / "vectors"
    await fill(path, range(20))
    record = pack_record(Record(QUESTION.group, "20", vector_of(20).tobytes()))
    assert num_bytes < len(record)
    with path.open("ab") as file:
        file.write(record[:num_bytes])

    with caplog.at_level(logging.WARNING):
        assert await numbers_in(path) == list(range(20))
    assert "cut short" in caplog.text
    await fill(path, [30])
    assert await numbers_in(path) == [*range(20), 30]
    assert aside(path) == []


@pytest.mark.parametrize("where", [0, 5, 22, 30, 60, 75, 80, 120, 400, 900])
async def test_damaged_file_is_set_aside_whole(tmp_path: Path, where: int, caplog: pytest.LogCaptureFixture) -> None:
    """One wrong byte anywhere: nothing of it is used, nothing of it is lost, and the index goes on with a new file."""
    path = tmp_path / "vectors"
    await fill(path, range(20))
    damaged = bytearray(path.read_bytes())
    damaged[where] ^= 0x55
    path.write_bytes(damaged)

    with caplog.at_level(logging.ERROR):
        assert await numbers_in(path) == []
    await fill(path, [1, 2])

    assert "cannot be used" in caplog.text
    assert [kept.read_bytes() for kept in aside(path)] == [bytes(damaged)]
    assert await numbers_in(path) == [1, 2]


@pytest.mark.parametrize("content", [b"", b"slip", b"another program's file\n" * 10], ids=["empty", "short", "other"])
async def test_file_of_something_else_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """Whatever lies there was somebody's."""
    path = tmp_path / "vectors"
    path.write_bytes(content)

    assert await numbers_in(path) == []
    assert [kept.read_bytes() for kept in aside(path)] == [content]


async def test_snapshot_of_another_encoder_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another fingerprint or precision: vectors that must not meet. Every such file is kept, under its own name."""
    path = tmp_path / "vectors"
    await fill(path, [1])
    first = path.read_bytes()

    with caplog.at_level(logging.ERROR):
        assert await numbers_in(path, fingerprint="other") == []
    assert "'test'" in caplog.text
    assert "'other'" in caplog.text
    await fill(path, [2])
    second = path.read_bytes()
    assert await numbers_in(path, precision="sq8") == []

    assert [kept.read_bytes() for kept in aside(path)] == [first, second]


async def test_snapshot_in_use_leaves_an_index_that_is_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two gateways on one file would ruin it: the second works from memory and says so."""
    path = tmp_path / "vectors"
    first = make_index(path)
    await first.open()
    first.add(QUESTION, "1", vector_of(1))

    with caplog.at_level(logging.WARNING):
        await fill(path, [2])
    await first.aclose()

    assert "used by another process" in caplog.text
    assert await numbers_in(path) == [1]


async def test_snapshot_in_a_folder_that_cannot_be_is_a_configuration_error(tmp_path: Path) -> None:
    """Told at the start, with the path."""
    (tmp_path / "file").write_text("")
    index = make_index(tmp_path / "file" / "vectors")

    with pytest.raises(ConfigurationError, match=str(tmp_path / "file" / "vectors")):
        await index.open()
    await index.aclose()


async def test_snapshot_on_a_read_only_disk_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was saved is found, what comes lives in memory, and the file stays as it is."""
    with small_disk(tmp_path):
        path = tmp_path / "vectors"
        await fill(path, [1, 2])
        make_read_only(tmp_path)
        before = path.read_bytes()

        await fill(path, [3])

        assert await numbers_in(path) == [1, 2]
        assert path.read_bytes() == before
        assert "cannot be written" in caplog.text


async def test_full_disk_costs_nothing_once_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What could not be written waits, and is written later; the index works all the time, and says it once."""
    path = tmp_path / "vectors"
    await fill(path, [1])
    index = make_index(path)
    await index.open()
    assert index._snapshot is not None
    with caplog.at_level(logging.ERROR):
        for number in (2, 3):
            index.add(QUESTION, str(number), vector_of(number))
            fill_disk(index._snapshot)
            await index._save()
    assert len(await index.search(QUESTION, vector_of(3), 5)) == 3
    assert index.statistics().write_errors == 2

    await index.aclose()

    assert caplog.text.count("cannot be saved") == 1
    assert await numbers_in(path) == [1, 2, 3]


async def test_disk_that_is_away_for_a_while_costs_nothing(tmp_path: Path) -> None:
    """A write fails, and then the file cannot even be opened: it is the same one that is gone on with later."""
    folder, away = tmp_path / "disk", tmp_path / "away"
    await fill(folder / "vectors", [1])
    index = make_index(folder / "vectors")
    await index.open()
    assert index._snapshot is not None
    index.add(QUESTION, "2", vector_of(2))
    fill_disk(index._snapshot)
    folder.rename(away)
    await index._save()
    away.rename(folder)
    index.add(QUESTION, "3", vector_of(3))
    await index._save()
    await index.aclose()

    assert await numbers_in(folder / "vectors") == [1, 2, 3]


def test_append_of_a_part_is_taken_back(tmp_path: Path) -> None:
    """A write that fails in the middle leaves the file as it was."""
    snapshot = Snapshot(tmp_path / "vectors", fingerprint="test", dimension=DIMENSION, precision="fp16")
    snapshot.open()
    snapshot.append(1.0, [pack_record(Record(b"g", "1", vector_of(1).tobytes()))])
    before = (tmp_path / "vectors").read_bytes()

    assert snapshot._file is not None
    snapshot._file.write(b"half a rec")
    snapshot._abandon()

    assert (tmp_path / "vectors").read_bytes() == before
    snapshot.append(1.0, [pack_record(Record(b"g", "2", None))])
    assert [record.id for record in snapshot.records()] == ["1", "2"]
    snapshot.close()


def test_names_too_long_to_be_written_are_refused() -> None:
    """The lengths are a byte each."""
    with pytest.raises(ValueError, match="256 bytes"):
        pack_record(Record(b"g", "i" * 256, None))


_WRITER = """
import asyncio, sys
from pathlib import Path
from tests.policies.cache.semantic.index.test_snapshot import QUESTION, make_index, vector_of

async def main(path, number):
    index = make_index(Path(path), save_interval_s=0.002, max_entries=3000)
    await index.open()
    while True:
        for number in range(number, number + 50):
            index.add(QUESTION, str(number), vector_of(number))
        number += 1
        written = number
        await index._save()
        if number // 50 % 4 == 0:
            await index._in_thread(lambda: index._snapshot.rewrite(index._codec.span, index._has))
        print(written, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_kill_at_any_moment_loses_the_last_write_at_most(tmp_path: Path) -> None:
    """A real process, killed in the middle of its writes and rewrites, again and again: never a file that is bad."""
    path = tmp_path / "vectors"
    randomness = random.Random(5)
    written = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), str(written)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(randomness.uniform(0.0, 0.4))
            writer.kill()
            lines = writer.stdout.read().split("\n")
        written = max([written, *(int(line) for line in lines[:-1] if line)])

        numbers = asyncio.run(numbers_in(path, max_entries=3000))

        assert aside(path) == []
        assert numbers[-1] >= written - 1
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert len(numbers) == min(3000, numbers[-1] + 1)
        written = numbers[-1] + 1
