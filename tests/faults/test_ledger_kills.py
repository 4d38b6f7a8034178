"""Workers that are killed while they write the ledger: what was noted is there, once, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from backends.clock import SystemClock
from gateway.ledger.days import Days
from gateway.ledger.ledger import Ledger
from gateway.ledger.report import Period, report
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.database import Database
from gateway.sql.postgres import PostgresDatabase
from gateway.sql.sqlite import SqliteDatabase
from tests.support.ledger import running_postgres

NOTES = """
import asyncio, os, struct, sys
from tests.faults.test_ledger_kills import database_of, ledger_of
from tests.support.ledger import sample_beginning, sample_row

async def main(url, folder, run):
    ledger = ledger_of(database_of(url), folder)
    await ledger.open()
    n = 0
    while True:
        for _ in range(200):
            n += 1
            ledger.begin(sample_beginning(n))
            row = sample_row(n)
            row.key = run
            ledger.note(row)
            os.write(1, struct.pack("<q", n))
        await asyncio.sleep(0)

asyncio.run(main(*sys.argv[1:]))
"""
"""Notes rows as fast as it can, and tells each number once it is noted."""


def database_of(url: str) -> Database:
    """The store behind a URL of either kind."""
    return PostgresDatabase(url, LEDGER) if url.startswith("postgresql") else SqliteDatabase(Path(url), LEDGER)


def ledger_of(database: Database, folder: str) -> Ledger:
    """A ledger that waits in that folder."""
    return Ledger(
        LedgerStore(database, "UTC"),
        Path(folder),
        max_segments=64,
        days=Days("UTC"),
        keep_s=3650 * 86400.0,
        outlives_power=False,
        clock=SystemClock(),
    )


def killed_run(url: str, folder: Path, run: str, random_: random.Random) -> set[int]:
    """What a process had noted when it was killed, at any moment."""
    child = subprocess.Popen(
        [sys.executable, "-c", NOTES, url, str(folder), run], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None
    first = child.stdout.read(8)
    os.set_blocking(child.stdout.fileno(), True)
    told = bytearray(first)
    end_after = random_.randrange(200, 20_000)
    while len(told) < 8 * end_after:
        told += child.stdout.read1(65536)
    child.kill()
    told += child.stdout.read()
    child.stdout.close()
    child.wait()
    assert len(told) % 8 == 0
    return {n for (n,) in struct.iter_unpack("<q", told)}


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_kills_lose_no_noted_row_and_double_none(tmp_path: Path, store: str) -> None:
    """Eight workers, two at a time, each killed at any moment, and each taken over by those that come after it."""
    random_ = random.Random(store)
    with contextlib.ExitStack() as stack:
        url = str(tmp_path / "ledger.sqlite3")
        if store == "postgres":
            url = stack.enter_context(running_postgres()).url
        noted: dict[str, set[int]] = {}
        for pair in range(4):
            names = [f"run-{pair}-{side}" for side in range(2)]
            runs = [asyncio.to_thread(killed_run, url, tmp_path / "journal", name, random_) for name in names]
            noted.update(zip(names, await asyncio.gather(*runs), strict=True))
        ledger = ledger_of(database_of(url), str(tmp_path / "journal"))
        await ledger.open()
        async with asyncio.timeout(60):
            while len(list((tmp_path / "journal").glob("*.lock"))) > 1:
                await asyncio.sleep(0.1)
        await ledger.aclose()
        database = database_of(url)
        with database.reading() as transaction:
            found = list(transaction.fetch("SELECT key, n FROM calls WHERE \"end\" <> 'worker_killed'"))
            ((num_killed,),) = transaction.fetch("SELECT COUNT(*) FROM calls WHERE \"end\" = 'worker_killed'")
        lines = list(report(database, ("key",), Period(None, None)))
        database.close()

    assert len(found) == len(set(found)), "none is there twice"
    stored = {run: {n for key, n in found if key == run} for run in noted}
    assert [n for run in noted for n in noted[run] - stored[run]] == [], "none is lost"
    # A row may be noted and its number not told yet; a call may have begun and not be noted.
    assert all(len(stored[run] - noted[run]) <= 1 for run in noted)
    assert num_killed <= len(noted)
    assert {line.values[0]: line.sums["calls"] for line in lines if line.values[0] in noted} == {
        run: len(stored[run]) for run in noted
    }
