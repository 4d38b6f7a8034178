"""A SQLite file of ours under several who make it, use it and leave it at once."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from gateway.disk.sqlite_file import SqliteFile
from gateway.sql.database import Purpose
from gateway.sql.sqlite import SqliteDatabase

_PURPOSE = Purpose(name="store", setting="stores.url", mark=77)
_TABLE = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"
_NUM_WORKERS = 4
_READ_AND_LEAVE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print([number for (number,) in connection.execute("SELECT number FROM numbers ORDER BY number")])
connection.close()
"""


def read_elsewhere(path: Path) -> list[int]:
    """What another process reads there before it leaves."""
    read = subprocess.run([sys.executable, "-c", _READ_AND_LEAVE, path], capture_output=True, text=True, check=True)
    return [int(word) for word in read.stdout.strip("[]\n").split(",")]


def read_numbers(path: Path) -> Sequence[int]:
    connection = sqlite3.connect(path)
    try:
        return [number for (number,) in connection.execute("SELECT number FROM numbers ORDER BY number")]
    finally:
        connection.close()


def add(database: SqliteDatabase, number: int) -> None:
    with database.writing() as transaction:
        transaction.execute(_TABLE)
        transaction.execute("INSERT INTO numbers VALUES (?)", (number,))


def test_all_may_make_it_at_once(tmp_path: Path) -> None:
    """Workers that start together with no file yet: none takes another's half-made file for something else's."""

    def make(path: Path, number: int, barrier: Barrier) -> None:
        database = SqliteDatabase(path, _PURPOSE)
        barrier.wait()
        add(database, number)
        database.close()

    with ThreadPoolExecutor(_NUM_WORKERS) as pool:
        for file in range(50):
            path, barrier = tmp_path / f"{file}.sqlite3", Barrier(_NUM_WORKERS)
            for made in [pool.submit(make, path, number, barrier) for number in range(_NUM_WORKERS)]:
                made.result()
            assert read_numbers(path) == list(range(_NUM_WORKERS))


def test_nothing_is_lost_beside_a_process_that_leaves(tmp_path: Path) -> None:
    """Two of one process have it open: one who reads it in another must not believe to be the last to leave."""
    path = tmp_path / "store.sqlite3"
    first, second = SqliteDatabase(path, _PURPOSE), SqliteDatabase(path, _PURPOSE)
    add(first, 1)
    add(second, 2)
    assert read_elsewhere(path) == [1, 2]
    add(first, 3)
    add(second, 4)
    assert read_elsewhere(path) == [1, 2, 3, 4]
    first.close()
    second.close()
    assert read_numbers(path) == [1, 2, 3, 4]


async def test_nothing_is_lost_of_a_file_of_one_thread(tmp_path: Path) -> None:
    """The same of a `SqliteFile`."""
    path = tmp_path / "objects.sqlite3"

    async def add_to(file: SqliteFile, number: int) -> None:
        await file.write(lambda connection: connection.execute("INSERT INTO numbers VALUES (?)", (number,)))

    first, second = SqliteFile(path, [_TABLE]), SqliteFile(path, [_TABLE])
    for number, file in enumerate((first, second)):
        await file.open()
        await add_to(file, number)
    assert read_elsewhere(path) == [0, 1]
    await add_to(first, 2)
    assert read_elsewhere(path) == [0, 1, 2]
    await first.aclose()
    await second.aclose()


@pytest.mark.parametrize("is_linked", [False, True])
def test_only_its_owner_reads_it(tmp_path: Path, *, is_linked: bool) -> None:
    """Also the files beside it, and where a link names a place that is still empty."""
    path = tmp_path / "store.sqlite3"
    place = path
    if is_linked:
        place = tmp_path / "elsewhere.sqlite3"
        path.symlink_to(place)
    database = SqliteDatabase(path, _PURPOSE)
    add(database, 1)

    files = list(tmp_path.glob(f"{place.name}*"))
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    database.close()
