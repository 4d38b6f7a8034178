"""What the stores of batches hold to: a line is answered once, a job holds a line at most, files come and go whole."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.errors import ConfigurationError, QuotaExceeded, StoreUnavailable, UnknownObject
from gateway.batches.batch_store import BatchStore
from gateway.batches.file_store import FileStore
from gateway.batches.job_store import JobStore
from gateway.batches.records import TABLES, BatchRow, Group, LineResult, NewLine, Tenant
from gateway.disk.sqlite_file import SqliteFile
from policies.batches.settings import BatchesStore
from policies.prices.price import PICO_PER_DOLLAR
from tests.support.clock import FakeClock

RED, BLUE = Tenant("red"), Tenant("blue")


class Batches:
    """All stores of one folder."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        limits = BatchesStore(folder=str(folder), max_files=3, max_size="1KiB", max_batches=2, keep="10d")  # type: ignore[arg-type]  # as a file says it
        self.clock = clock
        self.folder = folder
        self.database = SqliteFile(folder / "batches.sqlite3", TABLES)
        self.files = FileStore(self.database, limits, clock)
        self.batches = BatchStore(self.database, self.files, clock, max_batches=2, keep_s=864000.0)
        self.jobs = JobStore(self.database, clock)

    async def open(self) -> None:
        """Open all of it."""
        await self.database.open()
        await self.files.open()

    async def file(self, tenant: Tenant = RED, content: bytes = b"{}") -> str:
        """The id of a new file."""
        part = self.files.new_part()
        part.write_bytes(content)
        return (await self.files.add(tenant, part, "f", "batch")).id

    async def batch(self, tenant: Tenant = RED, *, lines: int = 3, route: str = "r") -> BatchRow:
        """A batch in progress, with so many lines."""
        made = await self.batches.create(
            tenant,
            key="k",
            endpoint="/v1/embeddings",
            input_file_id=await self.file(tenant),
            window=("24h", 86400.0),
            metadata="",
            output_keep_s=None,
        )
        await self.batches.add_lines(made, [NewLine(f"c{number}", 0, 2, "m", route) for number in range(lines)])
        await self.batches.begin(made, lines, "m")
        return await self.batches.get(tenant, made.id)


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Batches]:
    """An open one."""
    kept = Batches(tmp_path, FakeClock())
    await kept.open()
    yield kept
    await kept.database.aclose()


def answer(line: int, text: bytes = b"{}") -> LineResult:
    """An answer with three tokens."""
    return LineResult(line, is_answered=True, text=text, input_tokens=1, output_tokens=2, cost=PICO_PER_DOLLAR // 2)


async def test_line_is_answered_once(kept: Batches) -> None:
    """A second answer changes nothing, not even what is counted."""
    batch = await kept.batch()
    line = await kept.batches.next_line(batch, "r", [])
    assert line is not None
    first = await kept.batches.answer([answer(line.id)])
    second = await kept.batches.answer([answer(line.id, b"other")])

    assert (len(first), len(second)) == (1, 0)
    found = await kept.batches.get(RED, batch.id)
    assert (found.completed, found.input_tokens, found.output_tokens, found.cost) == (1, 1, 2, 0.5)
    assert (await kept.batches.results(batch, 0, 10))[0][3] == b"{}"


async def test_line_of_a_job_is_answered_by_that_job_alone(kept: Batches) -> None:
    """Neither a call nor another job may answer it, and a job takes none that is in another."""
    batch = await kept.batch(lines=2)
    (group,) = await kept.jobs.groups(["r"])
    assert await kept.jobs.collect(group, "up", 1, 10**6) == 1
    assert await kept.jobs.collect(group, "up", 5, 10**6) == 1
    assert await kept.jobs.collect(group, "up", 5, 10**6) == 0
    first, second = await kept.jobs.unsettled()
    ((_, line),) = await kept.jobs.lines(first, 0, 10)

    assert not await kept.batches.answer([answer(line.id)])
    assert not await kept.batches.answer([answer(line.id)], second.seq)
    assert len(await kept.batches.answer([answer(line.id)], first.seq)) == 1
    assert await kept.jobs.num_open(first) == 0
    assert (await kept.batches.get(RED, batch.id)).completed == 1


async def test_job_takes_lines_up_to_its_size(kept: Batches) -> None:
    """At least one, and what is left goes with the next."""
    await kept.batch(lines=5)
    (group,) = await kept.jobs.groups(["r"])

    assert await kept.jobs.collect(group, "up", 10, 2 * 514) == 2
    assert await kept.jobs.collect(group, "up", 10, 1) == 1


async def test_lines_of_a_job_that_is_given_up_wait_again(kept: Batches) -> None:
    """Not before they are due, and with an attempt more."""
    batch = await kept.batch(lines=1)
    (group,) = await kept.jobs.groups(["r"])
    await kept.jobs.collect(group, "up", 1, 10**6)
    (job,) = await kept.jobs.unsettled()
    await kept.jobs.release(job, kept.clock.wall() + 60)

    assert await kept.jobs.groups(["r"]) == []
    await kept.clock.advance(61)
    assert len(await kept.jobs.groups(["r"])) == 1
    line = await kept.batches.next_line(batch, "r", [])
    assert line is not None
    assert line.attempts == 1


async def test_batch_that_is_cancelled_takes_no_answer(kept: Batches) -> None:
    """What comes later for a line that was dropped is nobody's."""
    batch = await kept.batch(lines=2)
    line = await kept.batches.next_line(batch, "r", [])
    assert line is not None
    cancelled = await kept.batches.cancel(RED, batch.id)
    dropped = await kept.batches.drop(cancelled)

    assert dropped == {"r": 2}
    assert not await kept.batches.answer([answer(line.id)])
    assert not await kept.batches.add_lines(batch, [NewLine("x", 0, 2, "m", "r")])


async def test_batch_past_its_window_expires(kept: Batches) -> None:
    """Its open lines end, the answered ones stay."""
    batch = await kept.batch(lines=3)
    line = await kept.batches.next_line(batch, "r", [])
    assert line is not None
    await kept.batches.answer([answer(line.id)])
    assert await kept.batches.expire() == {}
    await kept.clock.advance(86401)

    assert await kept.batches.expire() == {"r": 2}
    found = await kept.batches.get(RED, batch.id)
    assert (found.status, found.completed, found.failed) == ("finalizing", 1, 2)


async def test_batches_of_a_tenant_have_an_end(kept: Batches) -> None:
    """Of those that are not done."""
    await kept.batch()
    await kept.batch()

    with pytest.raises(QuotaExceeded):
        await kept.batch()
    assert (await kept.batch(BLUE)).tenant == BLUE


async def test_files_of_a_tenant_have_an_end(kept: Batches) -> None:
    """In number and in bytes; a refused one leaves nothing."""
    with pytest.raises(QuotaExceeded, match="bytes"):
        await kept.file(content=b"x" * 1025)
    for _ in range(3):
        await kept.file()

    with pytest.raises(QuotaExceeded, match="3 files"):
        await kept.file()
    assert len(list((kept.folder / "files").iterdir())) == 3
    await kept.file(BLUE)


async def test_file_expires_and_its_bytes_go(kept: Batches) -> None:
    """It is not there any more the moment its time is up, and not on disk once somebody tidies up."""
    file = await kept.file()
    await kept.clock.advance(10 * 86400 + 1)

    with pytest.raises(UnknownObject):
        await kept.files.get(RED, file)
    assert await kept.files.sweep() == 0
    assert list((kept.folder / "files").iterdir()) == []


async def test_clock_that_jumps_ahead_takes_nothing_away(kept: Batches) -> None:
    """It is set right a moment later, and all is as it was."""
    batch = await kept.batch()
    kept.clock.jump(40 * 86400)
    assert await kept.batches.expire() == {}
    await kept.batches.forget_old()
    assert await kept.files.sweep() > 0
    kept.clock.jump(-40 * 86400)

    assert (await kept.batches.get(RED, batch.id)).status == "in_progress"
    assert (await kept.files.get(RED, batch.input_file_id)).id == batch.input_file_id
    assert kept.files.path(batch.input_file_id).exists()


async def test_tidying_up_leaves_what_another_worker_is_making(kept: Batches) -> None:
    """Of a file that is days old: the batch is not in the database yet, its input is there already."""
    file = await kept.file()
    path = kept.files.path(file)
    days_ago = kept.clock.wall() - 2 * 86400
    os.utime(path, (days_ago, days_ago))
    os.link(path, kept.files.input_path("batch_new"))
    await kept.files.sweep()

    assert kept.files.input_path("batch_new").exists()


async def test_database_opened_again_holds_the_same(kept: Batches) -> None:
    """What was done is on disk."""
    batch = await kept.batch()
    await kept.database.aclose()
    again = Batches(kept.folder, kept.clock)
    await again.open()

    assert await again.batches.get(RED, batch.id) == batch
    await again.database.aclose()


async def test_database_of_a_newer_version_is_refused(kept: Batches) -> None:
    """Nobody guesses what it means."""
    await kept.database.write(lambda connection: connection.execute("PRAGMA user_version = 99"))
    await kept.database.aclose()

    with pytest.raises(ConfigurationError, match="newer version"):
        await Batches(kept.folder, kept.clock).open()


async def test_database_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    """A file that is none of SQLite's is not touched."""
    (tmp_path / "batches.sqlite3").write_bytes(b"something else" * 100)

    with pytest.raises(ConfigurationError, match="cannot be used"):
        await Batches(tmp_path, FakeClock()).open()
    assert (tmp_path / "batches.sqlite3").read_bytes().startswith(b"something else")


async def test_database_that_is_closed_says_so(tmp_path: Path) -> None:
    """A late question is an answerable error."""
    kept = Batches(tmp_path, FakeClock())
    await kept.open()
    await kept.database.aclose()

    with pytest.raises(StoreUnavailable):
        await kept.batches.unfinished()


async def test_lines_that_nobody_waits_for_are_kept_while_a_provider_has_them(kept: Batches) -> None:
    """Whose they are is asked for once it tells what it did of them; all others go with their batch."""
    batch = await kept.batch(lines=3)
    await kept.jobs.collect(Group("r", "/v1/embeddings", "m", 2, 10, 0.0), "up", 2, 10_000)
    (job,) = await kept.jobs.unsettled()
    await kept.batches.answer([answer(1)], job.seq)
    await kept.batches.cancel(RED, batch.id)
    await kept.batches.drop(batch)
    await kept.batches.finish(batch, "cancelled", [])

    assert await kept.jobs.lines(job, 0, 10) == []
    assert [(name, line.id) for name, line in await kept.jobs.lines(job, 0, 10, left=True)] == [(batch.id, 2)]
    assert (await kept.batches.owners([1, 2, 3])).keys() == {2}
    await kept.jobs.settle(job)
    assert (await kept.batches.owners([1, 2, 3])).keys() == set()


async def test_lines_that_have_no_end_yet_outlive_their_job(kept: Batches) -> None:
    """They are still to be written into a file of errors."""
    batch = await kept.batch(lines=1)
    await kept.jobs.collect(Group("r", "/v1/embeddings", "m", 1, 10, 0.0), "up", 1, 10_000)
    (job,) = await kept.jobs.unsettled()
    await kept.clock.advance(90_000)
    await kept.batches.expire()
    await kept.jobs.settle(job)

    assert len(await kept.batches.results(batch, 0, 10)) == 1
    await kept.batches.finish(batch, "expired", [])
    assert await kept.batches.results(batch, 0, 10) == []
