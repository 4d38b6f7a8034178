"""The ledger of a process: rows reach the store behind the calls, whatever becomes of the store meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest

from backends.clock import Clock, SystemClock
from backends.errors import ConfigurationError
from gateway.ledger.days import Days
from gateway.ledger.journal import Journal
from gateway.ledger.ledger import Ledger
from gateway.ledger.report import Period, report
from gateway.ledger.row import WORKER_KILLED
from gateway.ledger.samples import GaugeSample
from gateway.ledger.segment import RecordKind
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.database import Database
from gateway.sql.postgres import PostgresDatabase
from gateway.sql.sqlite import SqliteDatabase
from policies.ledger.settings import SEGMENT_BYTES
from tests.gateway.ledger.conftest import Connect
from tests.support.clock import FakeClock
from tests.support.ledger import running_postgres, sample_beginning, sample_row
from tests.support.small_disk import fill, small_disk

ALWAYS = Period(None, None)


def made(
    database: Database,
    folder: Path,
    *,
    segments: int = 4,
    keep_s: float = 3650 * 86400.0,
    clock: Clock | None = None,
) -> Ledger:
    return Ledger(
        LedgerStore(database, "UTC"),
        folder,
        max_segments=segments,
        days=Days("UTC"),
        keep_s=keep_s,
        outlives_power=True,
        clock=clock or SystemClock(),
    )


@asynccontextmanager
async def running(database: Database, folder: Path, *, segments: int = 4) -> AsyncIterator[Ledger]:
    ledger = made(database, folder, segments=segments)
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.aclose()


def numbers(database: Database, *, end: str = "clean") -> list[int]:
    """Of the calls in the store that ended so."""
    with database.reading() as transaction:
        return [n for (n,) in transaction.fetch('SELECT n FROM calls WHERE "end" = ? ORDER BY n', (end,))]


def has_segments(folder: Path, number: int) -> bool:
    """To be written to: one that has its size, and no head yet, is still being made."""
    return [each.read_bytes()[:1] for each in folder.glob("*.segment")] == [b"S"] * number


def has_stored(ledger: Ledger, number: int) -> bool:
    return ledger.statistics().rows == number


def take_away(path: Path) -> None:
    """A SQLite file with its companions."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def num_samples(database: Database) -> int:
    with database.reading() as transaction:
        ((number,),) = transaction.fetch("SELECT COUNT(*) FROM samples")
        return int(number)


async def until(is_so: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.02)


async def test_noted_rows_are_stored_and_the_journal_goes(connect: Connect, tmp_path: Path) -> None:
    """Within moments while it is open, and what is left when it closes."""
    folder = tmp_path / "journal"
    async with running(connect(), folder) as ledger:
        for n in range(700):
            ledger.begin(sample_beginning(n))
            ledger.note(sample_row(n))
        await until(lambda: ledger.statistics().rows == 700)
        assert ledger.statistics().waiting == 0
        ledger.note(sample_row(700))

    assert numbers(connect()) == list(range(701))
    assert list(folder.iterdir()) == []
    assert sum(line.sums["calls"] for line in report(connect(), ("tenant",), ALWAYS)) == 701


async def test_writer_that_rests_hears_of_the_next_row(tmp_path: Path) -> None:
    """It does not wake for nothing, and does not look for rows only when something else is due, seconds later."""
    database = SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER)
    async with running(database, tmp_path / "journal") as ledger:
        writer = ledger._writer
        assert writer is not None
        for n in (1, 2):
            await until(lambda: writer.is_resting)
            ledger.begin(sample_beginning(n))
            ledger.note(sample_row(n))
            assert not writer.is_resting
            await until(partial(has_stored, ledger, n), 3.0)


async def test_call_that_is_not_over_at_the_end_is_left_to_the_next(connect: Connect, tmp_path: Path) -> None:
    """It says that its worker is gone, is estimated, and counted."""
    async with running(connect(), tmp_path / "journal") as ledger:
        ledger.begin(sample_beginning(1))
        ledger.begin(sample_beginning(2))
        ledger.note(sample_row(2))
    async with running(connect(), tmp_path / "journal") as ledger:
        await until(lambda: ledger.statistics().killed == 1)

    assert numbers(connect()) == [2]
    assert numbers(connect(), end=WORKER_KILLED) == [1]
    assert list((tmp_path / "journal").iterdir()) == []


async def test_call_that_is_not_over_has_cost_what_budgets_held_for_it(connect: Connect, tmp_path: Path) -> None:
    """Whoever reads from the ledger what was spent must not take it for nothing; without a budget nobody knows."""
    async with running(connect(), tmp_path / "journal") as ledger:
        ledger.begin(sample_beginning(1, held=7 * 10**9))
        ledger.begin(sample_beginning(2))
    async with running(connect(), tmp_path / "journal") as ledger:
        await until(lambda: ledger.statistics().killed == 2)

    with connect().reading() as transaction:
        rows = list(transaction.fetch("SELECT n, cost, estimated FROM calls ORDER BY n"))
    assert [tuple(row) for row in rows] == [(1, 7 * 10**9, True), (2, None, True)]


async def test_what_a_worker_left_goes_to_its_own_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a folder that several share; it may have another name meanwhile, or have been moved with its journal."""
    place = tmp_path / "place"
    folder = place / "journal"
    async with running(SqliteDatabase(place / "own.sqlite3", LEDGER), folder) as ledger:
        ledger.begin(sample_beginning(1))
    for _ in range(2):
        async with running(SqliteDatabase(place / "other.sqlite3", LEDGER), folder) as ledger:
            assert await ledger.wait_adopted(10)
            assert ledger.statistics().killed == 0
    assert ["sqlite:../own.sqlite3" in message for message in caplog.messages] == [True, True]
    place.rename(tmp_path / "moved")
    link = tmp_path / "link.sqlite3"
    link.symlink_to("moved/own.sqlite3")
    async with running(SqliteDatabase(link, LEDGER), tmp_path / "moved" / "journal") as ledger:
        assert await ledger.wait_adopted(10)

        assert ledger.statistics().killed == 1
    assert list((tmp_path / "moved" / "journal").iterdir()) == []


async def test_what_is_for_no_ledger_that_is_named_goes_to_any(tmp_path: Path) -> None:
    """As journals of before were, and as one may be made of a ledger whose address has changed."""
    async with running(SqliteDatabase(tmp_path / "before.sqlite3", LEDGER), tmp_path / "journal") as ledger:
        ledger.begin(sample_beginning(1))
    (lock,) = (tmp_path / "journal").glob("*.lock")
    lock.write_bytes(b"")
    async with running(SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER), tmp_path / "journal") as ledger:
        assert await ledger.wait_adopted(10)

        assert ledger.statistics().killed == 1


async def test_own_calls_after_a_worker_left_only_whole_ones_are_not_called_killed(
    connect: Connect, tmp_path: Path
) -> None:
    """What it left is stored, what comes meanwhile is stored too, and nobody was killed in the middle of a call."""
    store = connect()
    journal = Journal(tmp_path / "journal", 2)
    for n in range(3):
        assert journal.append(msgspec.msgpack.encode(sample_row(n)), RecordKind.CALL, n)
    journal.close(is_stored=False)
    async with running(store, tmp_path / "journal") as ledger:
        for n in range(10, 400):
            ledger.note(sample_row(n))
            if n % 20 == 0:
                await asyncio.sleep(0.01)
        await until(lambda: ledger.statistics().rows == 393)

        assert ledger.statistics().killed == 0


async def test_rows_wait_for_a_store_that_is_away() -> None:
    """From before the start, and in the middle: nobody waits, nothing is lost, and how long it takes is shown."""
    with running_postgres() as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server.stop()
        async with running(PostgresDatabase(server.url, LEDGER), folder) as ledger:
            for n in range(100):
                ledger.note(sample_row(n))
            await until(lambda: ledger.statistics().lag_s > 0)
            # The rows are of another month: how old they are is of no matter, only for how long they wait here.
            assert ledger.statistics().lag_s < 60
            assert ledger.statistics().waiting == 100
            server.start()
            await until(lambda: ledger.statistics().rows == 100)
            server.stop()
            for n in range(100, 200):
                ledger.note(sample_row(n))
            await asyncio.sleep(0.3)
            assert ledger.statistics().waiting == 100
            server.start()
            await until(lambda: ledger.statistics().rows == 200)
            await until(lambda: ledger.statistics().lag_s == 0)
            server.stop()
            ledger.note(sample_row(200))
        server.start()
        database = PostgresDatabase(server.url, LEDGER)
        assert numbers(database) == list(range(200))
        async with running(PostgresDatabase(server.url, LEDGER), folder) as ledger:
            await until(lambda: ledger.statistics().rows == 1)
        assert numbers(database) == list(range(201))
        database.close()


async def test_what_finds_no_room_is_dropped_and_counted(tmp_path: Path) -> None:
    """The journal has an end; noting a row raises nothing, and each that is not dropped is stored."""
    database = SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER)
    locker = SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER)
    async with running(database, tmp_path / "journal", segments=4) as ledger:
        with locker.writing():
            n = 0
            while not ledger.statistics().dropped["journal_full"]:
                row = sample_row(n)
                row.tags = "x" * 100_000
                ledger.note(row)
                n += 1
                await asyncio.sleep(0)
        locker.close()
        dropped = ledger.statistics().dropped["journal_full"]
        await until(lambda: ledger.statistics().rows == n - dropped, 60.0)
        ledger.note(sample_row(n))
        await until(lambda: ledger.statistics().rows == n - dropped + 1)


async def test_row_that_cannot_be_written_down_is_counted(tmp_path: Path) -> None:
    """A text that is no Unicode, a number without end, a time out of every calendar: none of them keeps others back."""
    async with running(SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER), tmp_path / "journal") as ledger:
        odd, huge, never = sample_row(1), sample_row(2), sample_row(3, at_us=2**62)
        odd.user = "\ud800"
        huge.input_tokens = 2**70
        for row in (odd, huge, never, sample_row(4)):
            ledger.note(row)
        await until(lambda: ledger.statistics().rows == 1)

        assert ledger.statistics().dropped == {"journal_full": 0, "refused": 3, "damaged": 0}


async def test_full_disk_holds_nobody_up(tmp_path: Path) -> None:
    """Neither journal nor store can grow: rows are taken while there is room, and stored once there is some again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk):
        async with running(SqliteDatabase(disk / "ledger.sqlite3", LEDGER), disk / "journal", segments=4) as ledger:
            sizes = [SEGMENT_BYTES, SEGMENT_BYTES]
            await until(lambda: [each.stat().st_size for each in (disk / "journal").glob("*.segment")] == sizes)
            fill(disk / "filler")
            for n in range(2000):
                ledger.note(sample_row(n))
            await until(lambda: ledger.statistics().lag_s > 0)
            (disk / "filler").unlink()
            await until(lambda: ledger.statistics().rows + ledger.statistics().dropped["journal_full"] == 2000)
            assert ledger.statistics().dropped["journal_full"] == 0


async def test_full_disk_of_the_journal_holds_up_no_store_elsewhere(tmp_path: Path) -> None:
    """Calls that last hold segments, and there is no room to write their beginnings down anew."""
    disk = tmp_path / "disk"
    disk.mkdir()
    path = tmp_path / "ledger.sqlite3"
    # Room for three segments and their lock.
    with small_disk(disk, 25):
        async with running(SqliteDatabase(path, LEDGER), disk / "journal", segments=4) as ledger:
            n = 0
            for lasting in range(2):
                ledger.begin(sample_beginning(10**6 + lasting))
                await until(partial(has_segments, disk / "journal", lasting + 2))
                for _ in range(90):
                    row = sample_row(n)
                    row.tags = "x" * 100_000
                    assert ledger.note(row)
                    n += 1
            await until(lambda: ledger.statistics().rows == n)
            fill(disk / "filler")
            assert ledger.note(sample_row(n))
            ledger.sample([GaugeSample(1, "in_flight", "up", 1.0)])

            # A connection is one thread's, and the ledger's is its writer's.
            looked_at = SqliteDatabase(path, LEDGER)
            await until(lambda: num_samples(looked_at) == 1)
            looked_at.close()
            await until(lambda: ledger.statistics().rows == n + 1)


async def test_file_that_is_taken_away_is_made_anew(tmp_path: Path) -> None:
    """Its rows are gone with it; those that come are kept, without a restart."""
    path = tmp_path / "ledger.sqlite3"
    async with running(SqliteDatabase(path, LEDGER), tmp_path / "journal") as ledger:
        ledger.note(sample_row(1))
        await until(lambda: ledger.statistics().rows == 1)
        take_away(path)
        ledger.note(sample_row(2))

        await until(lambda: ledger.statistics().rows == 2)
        assert numbers(SqliteDatabase(path, LEDGER)) == [2]


async def test_damage_of_what_was_taken_over_is_counted(tmp_path: Path) -> None:
    """As that of the own journal is: most of it is found after a crash."""
    folder = tmp_path / "journal"
    dead = Journal(folder, 4)
    for n in range(2):
        dead.append(msgspec.msgpack.encode(sample_row(n)), RecordKind.CALL, n)
    (path,) = (segment.path for segment in dead.segments)
    end = dead.segments[0].end
    dead.close(is_stored=False)
    with path.open("r+b") as file:
        file.seek(end - 5)
        file.write(b"?????")
    (folder / f"{dead.worker:016x}-00000007.segment").write_bytes(b"something else")
    async with running(SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER), folder) as ledger:
        await until(lambda: len(list(folder.glob("*.lock"))) == 1)

        assert ledger.statistics().rows == 1
        assert ledger.statistics().dropped["damaged"] == 2


async def test_journal_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    """So is a file that is no ledger; then nothing is left behind."""
    (tmp_path / "file").write_text("")
    (tmp_path / "other.sqlite3").write_bytes(b"something else" * 100)

    with pytest.raises(ConfigurationError, match=r"journal .*/file/journal cannot be used"):
        await made(SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER), tmp_path / "file" / "journal").open()
    with pytest.raises(ConfigurationError, match="cannot be used: file is not a database"):
        await made(SqliteDatabase(tmp_path / "other.sqlite3", LEDGER), tmp_path / "journal").open()
    assert list((tmp_path / "journal").iterdir()) == []


async def test_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """A SQLite file with other tables is not taken for a ledger."""
    connection = sqlite3.connect(tmp_path / "batches.sqlite3")
    connection.execute("CREATE TABLE batches (id)")
    connection.commit()
    connection.close()

    with pytest.raises(ConfigurationError, match="is a SQLite file of something else"):
        await made(SqliteDatabase(tmp_path / "batches.sqlite3", LEDGER), tmp_path / "journal").open()


async def test_what_is_left_is_taken_over_while_calls_come(tmp_path: Path) -> None:
    """However many there are: the two take turns."""
    folder = tmp_path / "journal"
    dead = Journal(folder, 4)
    for n in range(5):
        dead.append(msgspec.msgpack.encode(sample_beginning(n)), RecordKind.BEGINNING, n)
    dead.close(is_stored=False)
    async with running(SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER), folder) as ledger:
        n = 0
        async with asyncio.timeout(20):
            while not ledger.statistics().killed:
                ledger.note(sample_row(n))
                n += 1
                await asyncio.sleep(0.0005)
        await until(lambda: ledger.statistics().rows == n + 5)


async def test_clock_that_is_ahead_for_a_while_takes_no_rows_away(tmp_path: Path) -> None:
    """What is old without that goes meanwhile. Nothing goes when a gateway has just been started with a wrong clock."""
    clock = FakeClock()
    database = SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER)
    ledger = made(database, tmp_path / "journal", keep_s=10 * 86400.0, clock=clock)
    reader = SqliteDatabase(tmp_path / "ledger.sqlite3", LEDGER)
    numbered = count()

    async def noted(age_s: float) -> int:
        """The number of a row that is that old, once it is stored."""
        n = next(numbered)
        ledger.note(sample_row(n, at_us=int((clock.wall() - age_s) * 1e6)))
        await until(lambda: ledger.statistics().rows == n + 1)
        return n

    async def looked() -> None:
        """The next time that the writer looks for old rows is over."""
        await clock.advance(601)
        for _ in range(2):
            await noted(0)

    def is_there(n: int) -> bool:
        with reader.reading() as transaction:
            return bool(list(transaction.fetch("SELECT n FROM calls WHERE n = ?", (n,))))

    await ledger.open()
    try:
        fresh, old = await noted(86400), await noted(11 * 86400)
        clock.jump(300 * 86400)
        await looked()
        assert is_there(fresh)
        assert not is_there(old)
        clock.jump(-300 * 86400)
        await looked()
        assert is_there(fresh)
        clock.jump(300 * 86400)
        await looked()
        assert is_there(fresh)
        await looked()
        assert not is_there(fresh)
    finally:
        await ledger.aclose()
    numbered = count()
    clock.jump(300 * 86400)
    ledger = made(database, tmp_path / "journal", keep_s=10 * 86400.0, clock=clock)
    await ledger.open()
    try:
        await clock.advance(60)
        clock.jump(-300 * 86400)
        fresh = await noted(86400)
        await looked()
        assert is_there(fresh)
    finally:
        await ledger.aclose()


async def test_two_workers_share_a_store_and_one_takes_over(connect: Connect, tmp_path: Path) -> None:
    """Each numbers its own calls; what a killed one has left is stored by the other."""
    folder = tmp_path / "journal"
    dead = Journal(folder, 4)
    async with running(connect(), folder) as first, running(connect(), folder) as second:
        for n in range(50):
            first.note(sample_row(n))
            second.note(sample_row(n))
        await until(lambda: first.statistics().rows + second.statistics().rows == 100)
        dead.close(is_stored=False)
    async with running(connect(), folder):
        await until(lambda: len(list(folder.glob("*.lock"))) == 1)

    assert numbers(connect()) == sorted([*range(50)] * 2)
