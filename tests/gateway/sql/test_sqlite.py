"""A SQLite file of ours under several who make it, use it and leave it at once."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from backends.errors import StoreUnavailable
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

_HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT COUNT(*) FROM numbers").fetchall(), flush=True)
sys.stdin.read()
"""


@contextmanager
def open_elsewhere(path: Path) -> Iterator[None]:
    """Another process has it open meanwhile, and does nothing more."""
    with subprocess.Popen([sys.executable, "-c", _HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield


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


def add(database: SqliteDatabase, *numbers: int) -> None:
    with database.writing() as transaction:
        transaction.execute(_TABLE)
        for number in numbers:
            transaction.execute("INSERT INTO numbers VALUES (?)", (number,))


def numbers_of(database: SqliteDatabase) -> list[int]:
    with database.reading() as transaction:
        return [number for (number,) in transaction.fetch("SELECT number FROM numbers ORDER BY number")]


async def add_to(file: SqliteFile, number: int) -> None:
    await file.write(lambda connection: connection.execute("INSERT INTO numbers VALUES (?)", (number,)))


def back_up(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def is_whole(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def put_backup_back(path: Path) -> None:
    """As of a moment ago, without a word to those who have the file open; its log stays."""
    path.with_name("copy").replace(path)


def take_away(path: Path) -> None:
    """Without its log."""
    path.rename(path.with_name("aside"))


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

    first, second = SqliteFile(path, [_TABLE]), SqliteFile(path, [_TABLE])
    for number, file in enumerate((first, second)):
        await file.open()
        await add_to(file, number)
    assert read_elsewhere(path) == [0, 1]
    await add_to(first, 2)
    assert read_elsewhere(path) == [0, 1, 2]
    await first.aclose()
    await second.aclose()


@pytest.mark.parametrize(("replace", "left"), [(put_backup_back, [1, 2]), (take_away, [])])
def test_who_has_it_open_goes_on_with_what_is_there(
    tmp_path: Path, replace: Callable[[Path], None], left: list[int]
) -> None:
    """The log of the file that was there is no other file's, though it lies where that one's would."""
    path = tmp_path / "store.sqlite3"
    first, second = SqliteDatabase(path, _PURPOSE), SqliteDatabase(path, _PURPOSE)
    add(first, 1, 2)
    back_up(path, tmp_path / "copy")
    add(second, *range(10_000))
    num_connected = first.num_connected
    replace(path)
    add(first, 3)
    # The second one has not looked meanwhile.
    assert read_elsewhere(path) == [*left, 3]
    add(second, 4)
    add(first, 5)

    assert numbers_of(first) == numbers_of(second) == read_elsewhere(path) == [*left, 3, 4, 5]
    assert first.num_connected == num_connected + 1
    first.close()
    second.close()
    assert is_whole(path)
    assert read_numbers(path) == [*left, 3, 4, 5]


def test_what_is_moved_away_is_whole(tmp_path: Path) -> None:
    """Without its log, of which it has all."""
    path, aside = tmp_path / "store.sqlite3", tmp_path / "aside"
    database = SqliteDatabase(path, _PURPOSE)
    add(database, 1, 2)
    path.rename(aside)
    database.close()

    assert read_numbers(aside) == [1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["aside"]


def test_who_comes_later_finds_no_log_of_another_file(tmp_path: Path) -> None:
    """A backup is put back, and then all are ended that had the file open."""
    path = tmp_path / "store.sqlite3"
    database = SqliteDatabase(path, _PURPOSE)
    add(database, 1, 2)
    back_up(path, tmp_path / "copy")
    add(database, 3)
    put_backup_back(path)
    database.close()

    assert read_numbers(path) == [1, 2]


@pytest.mark.parametrize("was_open", [True, False])
def test_file_that_is_made_anew_has_no_log_yet(tmp_path: Path, *, was_open: bool) -> None:
    """Another process has the one before still open, as a dashboard has that nobody looks at."""
    path = tmp_path / "store.sqlite3"
    before, new = SqliteDatabase(path, _PURPOSE), SqliteDatabase(path, _PURPOSE)
    add(before, 1)
    if was_open:
        assert numbers_of(new) == [1]
    with open_elsewhere(path):
        before.close()
        path.unlink()
        add(new, 2)
        add(new, 3)

        assert numbers_of(new) == read_elsewhere(path) == [2, 3]
    new.close()


async def test_file_of_one_thread_that_is_taken_away_is_made_anew(tmp_path: Path) -> None:
    """What was in it is gone with it, and what comes is kept."""
    path = tmp_path / "objects.sqlite3"
    file, other = SqliteFile(path, [_TABLE]), SqliteFile(path, [_TABLE])
    for each in (file, other):
        await each.open()
    await add_to(file, 1)
    path.unlink()
    await add_to(file, 2)
    await add_to(other, 3)
    assert read_elsewhere(path) == [2, 3]
    await file.aclose()
    await other.aclose()

    assert read_numbers(path) == [2, 3]


async def test_file_of_one_thread_that_is_waited_for_may_be_put_back_and_replaced(tmp_path: Path) -> None:
    """With all that was told to be in it."""
    path = tmp_path / "batches.sqlite3"
    file, other = (SqliteFile(path, [_TABLE], is_waited_for=True) for _ in range(2))
    for each in (file, other):
        await each.open()
    await add_to(file, 1)
    back_up(path, tmp_path / "copy")
    await add_to(other, 2)
    take_away(path)
    for each in (file, other):
        with pytest.raises(StoreUnavailable):
            await add_to(each, 3)
    assert not path.exists()
    path.with_name("aside").rename(path)
    await add_to(file, 4)
    assert read_elsewhere(path) == [1, 2, 4]
    put_backup_back(path)
    await add_to(file, 5)
    await add_to(other, 6)

    assert read_elsewhere(path) == [1, 5, 6]
    await file.aclose()
    await other.aclose()
    assert read_numbers(path) == [1, 5, 6]


@pytest.mark.parametrize("name", [":memory:", "file:store?mode=memory", "100% of #1.sqlite3", "a b"])
def test_name_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever SQLite would take it for."""
    monkeypatch.chdir(tmp_path)
    database = SqliteDatabase(Path(name), _PURPOSE)
    add(database, 1)
    database.close()

    assert read_numbers(tmp_path / name) == [1]
    assert [each.name for each in tmp_path.iterdir()] == [name]


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
