"""Gateways that are killed while they settle lines of a provider's batch: each line's row is in the ledger, once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.batches.batch_store import BatchStore
from gateway.batches.outcomes import Outcomes
from gateway.batches.records import Group, LineResult
from gateway.ledger.store import LEDGER
from gateway.sql.sqlite import SqliteDatabase
from tests.gateway.batches.test_stores import Batches, answer
from tests.gateway.record.test_drift import Record, recording
from tests.support.clock import FakeClock

LINES = 5
SETTLES = (
    "import asyncio, sys; from tests.faults.test_batch_line_kills import killed; asyncio.run(killed(*sys.argv[1:]))"
)
"""Takes the job's answers, and is killed before, or just after, its second half is stored."""


class DeadlyStore(BatchStore):
    """It is killed where it stores for the second time."""

    def __init__(self, kept: Batches, when: str) -> None:
        super().__init__(kept.database, kept.files, kept.clock, max_batches=2, keep_s=1.0)
        self._when = when
        self._num_stored = 0

    async def answer(self, results: Sequence[LineResult], job: int | None = None) -> Sequence[LineResult]:
        """As that of a batch, but for the end."""
        self._num_stored += 1
        if self._num_stored == 2 and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        stored = await super().answer(results, job)
        if self._num_stored == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return stored


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Batches, Record]]:
    """What is kept of batches, and where rows go."""
    kept = Batches(folder, FakeClock())
    await kept.open()
    async with recording(folder / "ledger") as record:
        yield kept, record
    await kept.database.aclose()


async def settle(kept: Batches, record: Record, store: BatchStore) -> None:
    """Take the job's answers as its driver does: some lines at a time that still wait for it."""
    core = SimpleNamespace(
        booking=record.booking,
        runtime=SimpleNamespace(stacks={}, keyring=SimpleNamespace(named=lambda key, tenant: None)),
    )
    outcomes = Outcomes(core, store)  # type: ignore[arg-type]  # all that it needs of one
    (job,) = await kept.jobs.unsettled()
    waiting = [line.id for _, line in await kept.jobs.lines(job, 0, LINES)]
    for some in (waiting[:2], waiting[2:]):
        await outcomes.settle("r", "up", [answer(line) for line in some], job=job.seq)


async def killed(folder: str, when: str) -> None:
    """Settle, up to a point."""
    async with opened(Path(folder)) as (kept, record):
        await settle(kept, record, DeadlyStore(kept, when))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_lines_have_their_rows_once_whenever_their_gateway_is_killed(tmp_path: Path, when: str) -> None:
    """Whoever goes on notes again what may have been noted, and nobody notes what is stored already."""
    async with opened(tmp_path) as (kept, _):
        batch = await kept.batch(lines=LINES)
        await kept.jobs.collect(Group("r", "/v1/embeddings", "m", LINES, 10, 0.0), "up", 10, 10_000)
    run = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", SETTLES, str(tmp_path), when])
    assert run.returncode == -signal.SIGKILL
    async with opened(tmp_path) as (kept, record):
        await settle(kept, record, kept.batches)
        assert await record.ledger.wait_adopted(10)
    database = SqliteDatabase(tmp_path / "ledger" / "ledger.sqlite3", LEDGER)
    with database.reading() as transaction:
        rows = list(transaction.fetch("SELECT request_id, output_tokens FROM calls ORDER BY request_id"))
    database.close()

    assert rows == [(f"{batch.id}-{line}", 2) for line in range(1, LINES + 1)]
